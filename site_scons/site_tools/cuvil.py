from cuvil.scons import exists, generate, package  # noqa: F401

__import__("sys").modules["cuvil"] = package  # SCons has put this file in the package's place
