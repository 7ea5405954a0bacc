"""Kernels kept on disk."""

from icll.jit import kernel


def test_processes_that_compile_at_the_same_time_keep_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))

    def made(number):
        @kernel
        def add(x):
            return x + number

        return add

    # Both look at the empty index before either has written, the second is first to write it and last to write its code.
    one, other = made(1), made(2)
    files, others = one._cache._cache_file, other._cache._cache_file
    late = []
    monkeypatch.setattr(files, "_load_index", dict)
    monkeypatch.setattr(others, "_save_data", lambda *arguments: late.append(arguments))
    assert (other(1), one(1)) == (3, 2)
    monkeypatch.undo()
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    for arguments in late:
        others._save_data(*arguments)
    assert (made(1)(1), made(2)(1)) == (2, 3)
