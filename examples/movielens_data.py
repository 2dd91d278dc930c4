"""Ratings of films: MovieLens files, or generated ones whose structure is known."""

import csv
import math
import os
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

PADDING = -1
NO_GENRES = "(no genres listed)"
STARS = np.arange(1, 11) / 2.0
SPREAD_OF_NOISE = 0.8


class DataError(Exception):
    """The data cannot be used; the message says which file and what to do."""


class Ratings(NamedTuple):
    """Ratings, one per place of each array.

    Attributes:
        user: (n) int64, the user's number.
        movie: (n) int64, the movie's number.
        genres: (n, k) int64, the numbers of the movie's genres, padded with -1.
        stars: (n) float32, the rating.
        expected: (n) float64, what a predictor that knows the structure would say; None if unknown.
    """

    user: np.ndarray
    movie: np.ndarray
    genres: np.ndarray
    stars: np.ndarray
    expected: Optional[np.ndarray]

    def take(self, places: np.ndarray) -> "Ratings":
        """Returns the ratings at some places.

        Args:
            places: (m) integers in [0, n).

        Returns:
            m ratings.
        """
        return Ratings(*(None if part is None else part[places] for part in self))


def rmse(prediction: np.ndarray, stars: np.ndarray) -> float:
    """Returns the root of the mean squared difference of two arrays (n)."""
    difference = np.asarray(prediction, np.float64) - np.asarray(stars, np.float64)
    return float(np.sqrt(np.mean(np.square(difference))))


def split(count: int, held_out: float, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """Parts the places 0 .. count-1 at random.

    Args:
        count: How many places there are.
        held_out: Share of the second part, in (0, 1).
        seed: Of the choice; the same seed gives the same parts.

    Returns:
        Two arrays of places, both sorted: no place in both, every place in one.
    """
    order = np.random.RandomState(seed).permutation(count)
    cut = int(round(count * held_out))
    return np.sort(order[cut:]), np.sort(order[:cut])


def parse_genres(text: str) -> List[str]:
    """Returns the genres of a field such as `Comedy|Drama`; none for `(no genres listed)`."""
    names = [name.strip() for name in text.split("|")]
    return [name for name in names if name and name != NO_GENRES]


def genre_matrix(genres_of: Dict[int, List[str]], movies: np.ndarray) -> np.ndarray:
    """Numbers the genres, in the order of their names, and lays them beside the ratings.

    Args:
        genres_of: Names of the genres of each movie.
        movies: (n) int64.

    Returns:
        (n, k) int64, k the most genres that a movie has (at least 1), padded with -1. A movie
        without genres, or one that `genres_of` does not know, has a row of -1.
    """
    names = sorted({name for names in genres_of.values() for name in names})
    number = {name: place for place, name in enumerate(names)}
    known, place = np.unique(movies, return_inverse=True)
    width = max([len(genres_of.get(int(movie), ())) for movie in known] + [1])
    matrix = np.full((len(known), width), PADDING, np.int64)
    for row, movie in enumerate(known):
        for column, name in enumerate(genres_of.get(int(movie), ())):
            matrix[row, column] = number[name]
    return matrix[place]


def load(directory: str) -> Ratings:
    """Reads MovieLens' ratings.csv and movies.csv.

    Args:
        directory: Where they lie. ratings.csv has the columns userId, movieId and rating,
            movies.csv movieId and genres; more columns do no harm.

    Returns:
        All ratings, in the file's order.

    Raises:
        DataError: If the directory, a file or a column is missing, a file has no rows, or a
            value is not a number.
    """
    if not os.path.isdir(directory):
        raise DataError("there is no directory {!r}. --data wants one with MovieLens' ratings.csv "
                        "and movies.csv; without --data, ratings are generated.".format(directory))
    genres_of = {}  # type: Dict[int, List[str]]
    for movie, genres in _columns(directory, "movies.csv", (("movieId", int), ("genres", str))):
        genres_of[movie] = parse_genres(genres)
    rows = _columns(directory, "ratings.csv",
                    (("userId", int), ("movieId", int), ("rating", float)))
    users, movies, stars = zip(*rows)
    movies = np.array(movies, np.int64)
    return Ratings(np.array(users, np.int64), movies, genre_matrix(genres_of, movies),
                   np.array(stars, np.float32), None)


def load_times(directory: str) -> np.ndarray:
    """Reads when MovieLens' ratings were given.

    Args:
        directory: As `load`; ratings.csv has the column timestamp as well.

    Returns:
        (n) int64, seconds since 1970, in the file's order, which is that of `load`.

    Raises:
        DataError: As `load`.
    """
    return np.array([time for time, in _columns(directory, "ratings.csv", (("timestamp", int),))],
                    np.int64)


def generate_times(ratings: Ratings, years: float = 10.0, seed: int = 1) -> np.ndarray:
    """Makes times for generated ratings: users come one after another, and few stay long.

    Args:
        ratings: The ratings.
        years: From the first user to the last.
        seed: The same seed gives the same times.

    Returns:
        (n) int64, seconds.
    """
    random = np.random.RandomState(seed)
    day = 24 * 60 * 60
    users, user = np.unique(ratings.user, return_inverse=True)
    comes = random.uniform(1.0, years * 365.0, len(users))
    stays = random.lognormal(1.5, 1.5, len(users))
    return ((comes[user] + stays[user] * random.exponential(1.0, len(user))) * day).astype(np.int64)


def _columns(directory: str, name: str, wanted: Tuple[Tuple[str, type], ...]) -> List[tuple]:
    """Returns the wanted columns of a CSV file, one tuple per row."""
    path = os.path.join(directory, name)
    if not os.path.isfile(path):
        raise DataError("there is no file {!r}. --data wants a directory with MovieLens' "
                        "ratings.csv and movies.csv.".format(path))
    rows = []
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [column for column, _ in wanted if column not in (reader.fieldnames or ())]
        if missing:
            raise DataError("{!r} lacks the column {}; its first line is {}.".format(
                path, " and ".join(missing), reader.fieldnames or "empty"))
        for row in reader:
            try:
                rows.append(tuple(convert(row[column]) for column, convert in wanted))
            except (TypeError, ValueError):
                raise DataError("{!r}, line {}: {} should be numbers and text like those of "
                                "MovieLens, but the line says {}.".format(
                                    path, reader.line_num, ", ".join(c for c, _ in wanted),
                                    dict(row))) from None
    if not rows:
        raise DataError("{!r} has no rows below its header.".format(path))
    return rows


def generate(count: int = 100000, users: int = 610, movies: int = 9700, genres: int = 20,
             seed: int = 1) -> Ratings:
    """Makes ratings with a known structure.

    A rating is a half star near `signal + noise`, where the signal is the sum of the user's and the
    movie's bias and of a product of the user's and the movie's factors, and the movie's bias and
    factors come partly from its genres. Few movies get most ratings. Numbers of movies are
    scattered, as real ones are.

    Args:
        count: How many ratings.
        users: How many users.
        movies: How many movies; not all of them get a rating.
        genres: How many genres.
        seed: The same seed gives the same ratings.

    Returns:
        The ratings; no (user, movie) twice. `expected` is the mean of each rating given its
        signal: no predictor can do better on average.
    """
    random = np.random.RandomState(seed)
    factors = 4
    names = ["genre {:02d}".format(number) for number in range(genres)]
    numbers = np.sort(random.choice(np.arange(1, 20 * movies), movies, replace=False))
    weights = np.zeros((movies, genres))
    genres_of = {}
    for place in range(movies):
        of_movie = random.choice(genres, 1 + min(random.poisson(1.2), genres - 1, 6), replace=False)
        weights[place, of_movie] = 1.0 / len(of_movie)
        genres_of[int(numbers[place])] = [names[genre] for genre in of_movie]

    def normal(spread: float, *shape: int) -> np.ndarray:
        return random.normal(0.0, spread, shape)

    movie_bias = weights @ normal(0.5, genres) + normal(0.3, movies)
    movie_factor = weights @ normal(0.8, genres, factors) + normal(0.3, movies, factors)
    user_bias = normal(0.45, users)
    user_factor = normal(0.45, users, factors)

    user, movie = _pairs(random, count, users, movies)
    signal = (3.5 + user_bias[user] + movie_bias[movie]
              + np.sum(user_factor[user] * movie_factor[movie], axis=1))
    noisy = signal + normal(SPREAD_OF_NOISE, count)
    stars = np.clip(np.round(noisy * 2.0) / 2.0, STARS[0], STARS[-1])
    shown = numbers[movie].astype(np.int64)
    return Ratings((user + 1).astype(np.int64), shown, genre_matrix(genres_of, shown),
                   stars.astype(np.float32), expected_stars(signal))


def load_and_split(directory: Optional[str], quick: bool) -> Tuple[Ratings, Ratings]:
    """Loads or generates ratings, says how many there are, and parts them.

    Args:
        directory: MovieLens' files; None generates ratings.
        quick: Whether to generate few.

    Returns:
        Those to learn from, and the held-out ones: a tenth, chosen at random.

    Raises:
        DataError: If the files cannot be used, or hold too few ratings.
    """
    if directory:
        ratings = load(directory)
    elif quick:
        ratings = generate(count=20000, users=200, movies=1500)
    else:
        ratings = generate()
    if len(ratings.stars) < 20:
        raise DataError("{} ratings are too few to learn from: give at least 20.".format(
            len(ratings.stars)))
    kept, held_out = split(len(ratings.stars), 0.1, 3)
    print("{}: {:,} to learn from, {:,} held out".format(
        "ratings of " + directory if directory else "generated ratings", len(kept),
        len(held_out)), flush=True)
    return ratings.take(kept), ratings.take(held_out)


def _pairs(random: np.random.RandomState, count: int, users: int,
           movies: int) -> Tuple[np.ndarray, np.ndarray]:
    """Draws distinct (user, movie) pairs, skewed towards few users and fewer movies."""
    if count > users * movies // 4:
        raise ValueError("{} ratings are too many for {} users and {} movies".format(
            count, users, movies))
    of_user = random.lognormal(0.0, 1.0, users)
    of_movie = random.permutation(1.0 / (np.arange(movies) + 30.0))
    pairs = np.zeros(0, np.int64)
    while len(pairs) < count:
        user = random.choice(users, count, p=of_user / of_user.sum())
        movie = random.choice(movies, count, p=of_movie / of_movie.sum())
        pairs = np.unique(np.concatenate([pairs, user.astype(np.int64) * movies + movie]))
    pairs = random.permutation(pairs)[:count]
    return pairs // movies, pairs % movies


def expected_stars(signal: np.ndarray) -> np.ndarray:
    """Returns the mean of `half star near signal + noise`, for each signal (n)."""
    edges = (STARS[:-1] + STARS[1:]) / 2.0
    error = np.vectorize(math.erf)
    below = 0.5 * (1.0 + error((edges[None, :] - np.asarray(signal)[:, None])
                               / (SPREAD_OF_NOISE * math.sqrt(2.0))))
    # The lowest value, and each step above it as often as it is exceeded.
    return STARS[0] + np.sum((1.0 - below) * np.diff(STARS), axis=1)
