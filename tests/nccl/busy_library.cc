// A library that starts a thread when it is loaded, which libnccl.so.2 must not do. library_test.sh must reject it.
#include <chrono>
#include <thread>

namespace {

const bool kBegun = [] {
  std::thread([] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }).detach();
  return true;
}();

}  // namespace

extern "C" __attribute__((visibility("default"))) int ncclIsBusy() { return kBegun ? 1 : 0; }
