// A library that does what ours must not when it is loaded: it starts a thread. For library_test.sh to refuse.
#include <chrono>
#include <thread>

namespace {

const bool kBegun = [] {
  std::thread([] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }).detach();
  return true;
}();

}  // namespace

extern "C" __attribute__((visibility("default"))) int ncclIsBusy() { return kBegun ? 1 : 0; }
