// Linked into tests that open a library late (dlopen) whose threads have storage of their own, such as UCX.
//
// The leak checker of GCC 12's address sanitizer guesses where such storage begins from the words before it, and reads
// addresses that were never any: it dies of a signal in its own thread, or does not, as the length of the environment
// moves the heap. So it leaves the storage of threads out here, which hides from it the one thing that the C library
// holds there alone: the words of the last failed dlopen.
// NOLINTBEGIN(bugprone-reserved-identifier): the names are the sanitizer's
extern "C" {
[[gnu::visibility("default")]] const char* __lsan_default_options() { return "use_tls=0:print_suppressions=0"; }
[[gnu::visibility("default")]] const char* __lsan_default_suppressions() { return "leak:_dlerror_run\n"; }
}
// NOLINTEND(bugprone-reserved-identifier)
