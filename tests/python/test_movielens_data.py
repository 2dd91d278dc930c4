"""The demo's data: files are read whole or refused with a reason, and generated ratings keep their promise."""

import os
import sys

import numpy as np
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))

import movielens_data as data  # noqa: E402

MOVIES = """movieId,title,genres
10,"Long, Long Title (1999)",Comedy|Drama
20,Bare (2000),(no genres listed)
30,Third (2001),Action
"""
RATINGS = """userId,movieId,rating,timestamp
1,10,2.5,100
2,20,4.0,200
1,30,5.0,300
2,99,1.0,400
"""


def write(directory, movies=MOVIES, ratings=RATINGS):
    """Writes the files that are not None; returns the directory as str."""
    for name, text in (("movies.csv", movies), ("ratings.csv", ratings)):
        if text is not None:
            (directory / name).write_text(text, encoding="utf-8")
    return str(directory)


@pytest.mark.parametrize("text, names", [
    ("Comedy|Drama", ["Comedy", "Drama"]),
    ("Sci-Fi", ["Sci-Fi"]),
    ("(no genres listed)", []),
    ("", []),
    ("Comedy| Drama|", ["Comedy", "Drama"]),
])
def test_genres_are_parted_at_bars(text, names):
    assert data.parse_genres(text) == names


def test_files_become_one_rating_per_line(tmp_path):
    ratings = data.load(write(tmp_path))
    assert ratings.user.tolist() == [1, 2, 1, 2]
    assert ratings.movie.tolist() == [10, 20, 30, 99]
    assert ratings.stars.tolist() == [2.5, 4.0, 5.0, 1.0]
    assert ratings.user.dtype == ratings.movie.dtype == ratings.genres.dtype == np.int64
    assert ratings.stars.dtype == np.float32
    assert ratings.expected is None


def test_times_stand_beside_the_ratings(tmp_path):
    times = data.load_times(write(tmp_path))
    assert times.tolist() == [100, 200, 300, 400] and times.dtype == np.int64
    with pytest.raises(data.DataError, match="lacks the column timestamp"):
        data.load_times(write(tmp_path, ratings="userId,movieId,rating\n1,10,2.5\n"))


def test_generated_times_are_repeatable_and_users_come_one_after_another():
    ratings = data.generate(count=2000, users=50, movies=300)
    times = data.generate_times(ratings, years=4.0)
    assert times.dtype == np.int64 and times.min() > 0
    assert np.array_equal(times, data.generate_times(ratings, years=4.0))
    assert not np.array_equal(times, data.generate_times(ratings, years=4.0, seed=2))
    lengths = [np.ptp(times[ratings.user == user]) for user in np.unique(ratings.user)]
    assert np.median(lengths) < 0.1 * np.ptp(times)


def test_genres_are_numbered_by_name_and_padded_with_minus_one(tmp_path):
    ratings = data.load(write(tmp_path))
    # Action 0, Comedy 1, Drama 2; no genres; a movie that movies.csv does not know.
    assert ratings.genres.tolist() == [[1, 2], [-1, -1], [0, -1], [-1, -1]]


@pytest.mark.parametrize("movies, ratings, words", [
    (None, RATINGS, ["movies.csv"]),
    (MOVIES, None, ["ratings.csv"]),
    ("", RATINGS, ["movies.csv", "movieId", "empty"]),
    (MOVIES, "userId,movieId,rating\n", ["ratings.csv", "no rows"]),
    (MOVIES, "userId,movieId,stars\n1,10,3\n", ["ratings.csv", "lacks", "rating"]),
    (MOVIES, RATINGS + "3,10,good,500\n", ["ratings.csv", "line 6", "good"]),
    (MOVIES, RATINGS + "3,10\n", ["ratings.csv", "line 6"]),
])
def test_unusable_files_are_refused_by_name(tmp_path, movies, ratings, words):
    directory = write(tmp_path, movies, ratings)
    with pytest.raises(data.DataError) as refusal:
        data.load(directory)
    for word in words:
        assert word in str(refusal.value)


def test_a_missing_directory_is_refused_by_name(tmp_path):
    with pytest.raises(data.DataError, match="nowhere"):
        data.load(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("count", [10, 1001])
def test_the_split_is_disjoint_complete_and_repeatable(count):
    kept, held_out = data.split(count, 0.1, seed=3)
    assert len(held_out) == round(count * 0.1)
    assert sorted(np.concatenate([kept, held_out]).tolist()) == list(range(count))
    for first, second in zip((kept, held_out), data.split(count, 0.1, seed=3)):
        np.testing.assert_array_equal(first, second)
    assert held_out.tolist() != data.split(count, 0.1, seed=4)[1].tolist()


@pytest.fixture(scope="module")
def generated():
    """Ratings of the demo's size."""
    return data.generate()


def test_generated_ratings_have_the_shape_of_movielens(generated):
    assert len(generated.stars) == 100000
    assert len(np.unique(generated.user)) == 610
    assert 9000 < len(np.unique(generated.movie)) <= 9700
    assert np.unique(generated.genres).tolist() == list(range(-1, 20))
    assert set((generated.stars * 2).tolist()) <= set(range(1, 11))
    pairs = set(zip(generated.user.tolist(), generated.movie.tolist()))
    assert len(pairs) == len(generated.stars)
    _, of_movie = np.unique(generated.movie, return_counts=True)
    assert of_movie.max() > 20 * np.median(of_movie)


def test_one_movie_has_one_set_of_genres(generated):
    rows = np.unique(np.column_stack([generated.movie, generated.genres]), axis=0)
    assert len(rows) == len(np.unique(generated.movie))


def test_the_same_seed_generates_the_same_ratings():
    small = dict(count=500, users=20, movies=200)
    for first, second in zip(data.generate(**small), data.generate(**small)):
        np.testing.assert_array_equal(first, second)
    other = data.generate(seed=2, **small)
    assert data.generate(**small).stars.tolist() != other.stars.tolist()


def test_the_expected_stars_are_the_mean_of_many_draws():
    signal = np.array([-1.0, 0.6, 2.2, 3.75, 4.9, 7.0])
    noise = np.random.RandomState(0).normal(0.0, data.SPREAD_OF_NOISE, (200000, 1))
    drawn = np.clip(np.round((signal + noise) * 2.0) / 2.0, 0.5, 5.0).mean(axis=0)
    np.testing.assert_allclose(data.expected_stars(signal), drawn, atol=0.01)


def test_no_simple_predictor_beats_the_known_floor(generated):
    floor = data.rmse(generated.expected, generated.stars)
    assert 0.6 < floor < data.SPREAD_OF_NOISE
    _, user = np.unique(generated.user, return_inverse=True)
    means = np.bincount(user, generated.stars) / np.bincount(user)
    by_user = data.rmse(means[user], generated.stars)
    constant = data.rmse(generated.stars.mean(), generated.stars)
    assert floor < 0.95 * by_user < 0.95 * constant
    # What is left above the expectation is noise: it has no mean and does not go with the signal.
    rest = generated.stars - generated.expected
    assert abs(rest.mean()) < 0.01
    assert abs(np.corrcoef(rest, generated.expected)[0, 1]) < 0.01
