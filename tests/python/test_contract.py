"""Nothing of the API that scripts are written for is missing or differs, and the comparison would notice."""

import os
import sys

import pytest

import contract
import support
from mx_rec.constants import constants

# At the end, where an installed copy of the stand-in would be, too.
sys.path.append(os.path.join(support.PACKAGES, "tf_adapter_cpu"))


def test_nothing_of_the_api_is_missing_or_differs(dynamic):
    assert contract.differences() == []


@pytest.mark.parametrize("text, words", [
    ("a, b=1, c=2", []), ("a, b=1", []), ("a, *, c=2, b=1", []),
    ("b, a", ["parameter 0 should be 'b', but is 'a'", "parameter 1"]),
    ("a, b=2", ["default of 'b' should be 2, but is 1"]), ("a, b", ["default of 'b'"]),
    ("a, b=1, c=2, d=3", ["parameter 3 should be 'd', but is None"]),
    ("a, *, e=5", ["there is no parameter 'e'"]), ("a, *, c=3", ["default of 'c' should be 3"]),
    ("a, **kwargs", ["unknown keywords are not taken"]), ("*, b=1", ["'a' has no default"]),
    ("_any, _other=1", []), ("_any, _other=2", ["default of '_other' should be 2"]), ("a, b=True", ["default of 'b'"]),
    ("a, b=1, c=2, _d=0", ["parameter 3 should be '_d', but is None"])])
def test_a_signature_that_differs_is_told(text, words):
    def function(a, b=1, c=2):
        """Takes three arguments."""

    function.__module__ = __name__
    found = list(contract.compare(function, text))
    assert len(found) == len(words)
    for difference, word in zip(found, words):
        assert word in difference


def test_names_that_are_missing_are_told(dynamic, monkeypatch):
    assert list(contract.function_differences({"mx_rec.no_such": {"f": ""}, "mx_rec": {"nobody": "", "__version__": ""}})) == [
        "mx_rec.__version__ cannot be called", "mx_rec.nobody is missing: module 'mx_rec' has no attribute 'nobody'",
        "mx_rec.no_such.f is missing: No module named 'mx_rec.no_such'"]
    monkeypatch.setattr(constants, "MAX_WHILE_SIZE", 799)
    monkeypatch.delattr(constants, "LIBREC_CPU_SO")
    monkeypatch.delattr(constants, "CacheModeEnum")
    assert list(contract.constant_differences()) == [
        "constant MAX_WHILE_SIZE should be 800, but is 799", "constant LIBREC_CPU_SO is no name of a library",
        "there is no enumeration CacheModeEnum"]
    monkeypatch.setattr(contract, "TABLE", ["table_name", "no_such_attribute"])
    monkeypatch.setitem(contract.CONFIGURATION, "hybrid_manager_config", {"asc_manager": True, "nothing": False})
    monkeypatch.setitem(contract.HOST_OPS, "no_such_op", None)
    monkeypatch.setattr(contract, "FEATURE", ["name", "no_such_field"])
    found = list(contract.instance_differences())
    assert "tables have no no_such_attribute" in found and "host op no_such_op is missing" in found
    assert "features have no no_such_field" in found
    assert "ConfigInitializer.hybrid_manager_config.nothing is missing" in found
    assert any("hybrid_manager_config.asc_manager cannot be set" in one for one in found)


def test_another_order_of_older_releases_is_told(dynamic, monkeypatch):
    swapped = list(contract.OLDER_CREATE_TABLE)
    swapped[9], swapped[10] = swapped[10], swapped[9]
    monkeypatch.setattr(contract, "OLDER_CREATE_TABLE", swapped)
    assert "does not take the arguments of older releases by position" in list(contract.older_differences())[0]


def test_environment_variables_that_differ_are_told_and_stay_as_they_were(monkeypatch):
    monkeypatch.setenv("HD_CHANNEL_SIZE", "7")
    monkeypatch.setattr(contract, "ENVIRONMENT", {
        "HD_CHANNEL_SIZE": ("hd_channel_size", 41, ["8193"], ["40"]), "FAST_UNIQUE": ("fast_unique", 0, ["0"], [])})
    assert list(contract.environment_differences()) == [
        "the default of FAST_UNIQUE should be 0", "FAST_UNIQUE=0 should be 0, but is False",
        "the default of HD_CHANNEL_SIZE should be 41", "HD_CHANNEL_SIZE=8193 is refused",
        "HD_CHANNEL_SIZE=40 should be refused, but is 40"]
    assert os.environ["HD_CHANNEL_SIZE"] == "7" and "FAST_UNIQUE" not in os.environ
