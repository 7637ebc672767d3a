"""Where the pretend device cannot be built, its tests are skipped, and say why."""

from pretend.build import unavailable


def test_without_a_compiler_the_reason_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert unavailable() == (
        "the pretend device needs a C++ compiler, and there is no no-such-compiler"
    )
