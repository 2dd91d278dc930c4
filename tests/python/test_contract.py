"""Nothing of the API that scripts are written for is missing or differs, and the comparison would notice."""

import os
import sys

import pytest

import contract
import support

# At the end, where an installed copy of the stand-in would be, too.
sys.path.append(os.path.join(support.PACKAGES, "tf_adapter_cpu"))


def test_nothing_of_the_api_is_missing_or_differs(mx):
    mx()
    assert contract.differences() == []


@pytest.mark.parametrize("text, words", [
    ("a, b=1, c=2", []), ("a, b=1", []), ("a, *, c=2, b=1", []),
    ("b, a", ["parameter 0 should be 'b', but is 'a'", "parameter 1"]),
    ("a, b=2", ["default of 'b' should be 2, but is 1"]), ("a, b", ["default of 'b'"]),
    ("a, b=1, c=2, d=3", ["parameter 3 should be 'd', but is None"]),
    ("a, *, e=5", ["there is no parameter 'e'"]), ("a, *, c=3", ["default of 'c' should be 3"]),
    ("a, **kwargs", ["unknown keywords are not taken"]), ("*, b=1", ["'a' has no default"])])
def test_a_signature_that_differs_is_told(text, words):
    def function(a, b=1, c=2):
        """Takes three arguments."""

    function.__module__ = __name__
    found = list(contract.compare(function, text))
    assert len(found) == len(words)
    for difference, word in zip(found, words):
        assert word in difference


def test_names_that_are_missing_are_told(mx, monkeypatch):
    from mx_rec.constants import constants

    mx()
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
    found = list(contract.instance_differences())
    assert "tables have no no_such_attribute" in found and "host op no_such_op is missing" in found
    assert "ConfigInitializer.hybrid_manager_config.nothing is missing" in found
    assert any("hybrid_manager_config.asc_manager cannot be set" in one for one in found)
