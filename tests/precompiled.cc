// Nothing: a target needs a source to own the precompiled header of the tests (CMakeLists.txt).
