// Several processes: memory and events of one used by another, and what a forked process may do. The parent never
// touches the driver: a process that has cannot be forked into one that may.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "support.h"

namespace tutti::cuda {
namespace {

// Ends the process where something is not as it must be; the number tells the line.
void must(bool good, int line = __builtin_LINE()) {
  if (good) return;
  std::fprintf(stderr, "processes_test.cc:%d: not as it must be\n", line);
  _exit(1);
}

// One end of a line between two processes.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  template <class T>
  void send(const T& value) const {
    must(write(fd_, &value, sizeof(value)) == sizeof(value));
  }
  template <class T>
  T receive() const {
    T value{};
    must(recv(fd_, &value, sizeof(value), MSG_WAITALL) == sizeof(value));
    return value;
  }
  void send_file(int file) const { message(file, nullptr); }
  int receive_file() const {
    int file = -1;
    message(-1, &file);
    return file;
  }

 private:
  void message(int out, int* in) const {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    char byte = 0;
    iovec part{&byte, 1};
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control.data();
    head.msg_controllen = control.size();
    if (in != nullptr) {
      must(recvmsg(fd_, &head, 0) == 1);
      std::memcpy(in, CMSG_DATA(CMSG_FIRSTHDR(&head)), sizeof(int));
      return;
    }
    cmsghdr* rights = CMSG_FIRSTHDR(&head);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &out, sizeof(int));
    must(sendmsg(fd_, &head, 0) == 1);
  }
  int fd_;
};

// A process with a driver and a context of a device.
struct Own {
  const Driver& driver;
  const DriverApi& api;
  PrimaryContext primary;
  ContextScope scope;

  static Own on(int device) {
    const Driver* driver = Driver::open().value();
    auto primary = PrimaryContext::retain(*driver, device).value();
    auto scope = ContextScope::enter(*driver, primary.context()).value();
    return {*driver, driver->api(), std::move(primary), std::move(scope)};
  }
};

// Runs both in processes of their own; they must end well.
void run_two(const std::function<void(Line)>& first, const std::function<void(Line)>& second) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  std::array<pid_t, 2> children{};
  for (std::size_t i = 0; i < 2; ++i) {
    children[i] = fork();
    ASSERT_GE(children[i], 0);
    if (children[i] != 0) continue;
    alarm(30);
    (i == 0 ? first : second)(Line(ends[i]));
    must(fake::control()->leaks().empty());
    _exit(0);
  }
  close(ends[0]);
  close(ends[1]);
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(CudaProcesses, MemoryOfOneIsReadAndWrittenByTheOther) {
  const auto owner = [](Line line) {
    const Own own = Own::on(0);
    const auto memory = DeviceMemory::allocate(own.driver, 1000).value();
    const auto stream = Stream::create(own.driver).value();
    must(own.api.memset_d8_async(memory.address(), 5, 1000, stream.handle()) == CUresult::kSuccess);
    must(stream.synchronize().ok());
    const CUipcMemHandle handle = memory.share().value();
    CUdeviceptr twice = 0;
    must(own.api.ipc_open_mem_handle(&twice, handle, kIpcLazyPeerAccess) == CUresult::kInvalidContext);
    line.send(handle);
    line.receive<char>();
    std::uint8_t byte = 0;
    must(own.api.memcpy_dtoh_async(&byte, memory.address() + 999, 1, stream.handle()) == CUresult::kSuccess);
    must(byte == 6);
  };
  const auto user = [](Line line) {
    const Own own = Own::on(1);
    const auto handle = line.receive<CUipcMemHandle>();
    {
      const auto memory = PeerMemory::open(own.driver, handle).value();
      const auto again = PeerMemory::open(own.driver, handle).value();
      must(memory.address() == again.address());
      const auto stream = Stream::create(own.driver).value();
      std::uint8_t byte = 0;
      must(own.api.memcpy_dtoh_async(&byte, memory.address(), 1, stream.handle()) == CUresult::kSuccess);
      must(byte == 5);
      must(own.api.memset_d8_async(memory.address() + 999, 6, 1, stream.handle()) == CUresult::kSuccess);
      must(own.api.memset_d8_async(memory.address() + 1000, 6, 1, stream.handle()) == CUresult::kInvalidValue);
      must(own.api.mem_free(memory.address()) == CUresult::kInvalidValue);  // not its own
      must(stream.synchronize().ok());
    }
    line.send('x');
  };
  run_two([&](Line line) { owner(line); }, [&](Line line) { user(line); });
}

TEST(CudaProcesses, AHandleOfMemoryThatIsGoneIsRefused) {
  const auto owner = [](Line line) {
    const Own own = Own::on(0);
    auto memory = std::optional(DeviceMemory::allocate(own.driver, 1000).value());
    const CUipcMemHandle handle = memory->share().value();
    memory.reset();
    const auto other = DeviceMemory::allocate(own.driver, 1000).value();  // in its place
    line.send(handle);
    line.receive<char>();
  };
  const auto user = [](Line line) {
    const Own own = Own::on(0);
    const auto handle = line.receive<CUipcMemHandle>();
    const auto memory = PeerMemory::open(own.driver, handle);
    must(!memory.ok());
    must(memory.error().message.find("CUDA_ERROR_MAP_FAILED") != std::string::npos);
    must(!PeerMemory::open(own.driver, CUipcMemHandle{}).ok());
    line.send('x');
  };
  run_two([&](Line line) { owner(line); }, [&](Line line) { user(line); });
}

TEST(CudaProcesses, AStreamWaitsForTheOthersEvent) {
  const auto recorder = [](Line line) {
    const Own own = Own::on(0);
    const auto memory = DeviceMemory::allocate(own.driver, 8).value();
    const auto stream = Stream::create(own.driver).value();
    const auto event = Event::create(own.driver, {.flags = kEventInterprocess | kEventDisableTiming}).value();
    must(!Event::create(own.driver).value().share().ok());  // not an interprocess one
    must(own.api.memset_d8_async(memory.address(), 0, 8, stream.handle()) == CUresult::kSuccess);
    Gate gate;
    gate.put(own.api, stream.handle());
    must(own.api.memset_d8_async(memory.address(), 9, 1, stream.handle()) == CUresult::kSuccess);
    must(event.record(stream.handle()).ok());
    line.send(memory.share().value());
    line.send(event.share().value());
    line.receive<char>();  // it waits
    gate.open();
    line.receive<char>();
    must(stream.synchronize().ok());
  };
  const auto waiter = [](Line line) {
    const Own own = Own::on(0);
    {
      const auto memory = PeerMemory::open(own.driver, line.receive<CUipcMemHandle>()).value();
      const auto event = Event::open(own.driver, line.receive<CUipcEventHandle>()).value();
      const auto stream = Stream::create(own.driver).value();
      const auto pinned = PinnedMemory::allocate(own.driver, 1).value();
      must(stream.wait(event).ok());
      must(own.api.memcpy_dtoh_async(pinned.bytes().data(), memory.address(), 1, stream.handle()) ==
           CUresult::kSuccess);
      must(!stream.finished().value() && !event.finished().value());
      line.send('x');
      must(stream.synchronize().ok());
      must(pinned.bytes()[0] == std::byte{9});
    }
    line.send('x');
  };
  run_two([&](Line line) { recorder(line); }, [&](Line line) { waiter(line); });
}

TEST(CudaProcesses, PhysicalMemoryTravelsAsADescriptor) {
  constexpr std::size_t kBytes = std::size_t{2} << 20U;
  const auto map = [](const Own& own, CUmemGenericAllocationHandle handle) {
    CUdeviceptr address = 0;
    const CUmemAccessDesc access{{MemLocationType::kDevice, own.primary.device()}, MemAccess::kReadWrite};
    must(own.api.mem_address_reserve(&address, kBytes, 0, 0, 0) == CUresult::kSuccess);
    must(own.api.mem_map(address, kBytes, 0, handle, 0) == CUresult::kSuccess);
    must(own.api.mem_set_access(address, kBytes, &access, 1) == CUresult::kSuccess);
    must(own.api.mem_release(handle) == CUresult::kSuccess);
    return address;
  };
  const auto unmap = [](const Own& own, CUdeviceptr address) {
    must(own.api.mem_unmap(address, kBytes) == CUresult::kSuccess);
    must(own.api.mem_address_free(address, kBytes) == CUresult::kSuccess);
  };
  const auto owner = [&](Line line) {
    const Own own = Own::on(0);
    const CUmemAllocationProp properties{};
    CUmemGenericAllocationHandle handle = 0;
    must(own.api.mem_create(&handle, kBytes, &properties, 0) == CUresult::kSuccess);
    int file = -1;
    must(own.api.mem_export_to_shareable_handle(&file, handle, MemHandleType::kPosixFd, 0) == CUresult::kSuccess);
    line.send_file(file);
    close(file);
    const CUdeviceptr address = map(own, handle);
    const auto stream = Stream::create(own.driver).value();
    must(own.api.stream_wait_value32(stream.handle(), address, 77, kWaitEqual) == CUresult::kSuccess);
    must(stream.synchronize().ok());
    line.send('x');
    unmap(own, address);
  };
  const auto user = [&](Line line) {
    const Own own = Own::on(1);
    const int file = line.receive_file();
    CUmemGenericAllocationHandle handle = 0;
    must(own.api.mem_import_from_shareable_handle(&handle, std::bit_cast<void*>(std::intptr_t{file}),
                                                  MemHandleType::kPosixFd) == CUresult::kSuccess);
    close(file);
    const CUdeviceptr address = map(own, handle);
    const auto stream = Stream::create(own.driver).value();
    must(own.api.stream_write_value32(stream.handle(), address, 77, 0) == CUresult::kSuccess);
    line.receive<char>();
    unmap(own, address);
  };
  run_two([&](Line line) { owner(line); }, [&](Line line) { user(line); });
}

TEST(CudaProcesses, AProcessThatWasForkedAfterUseIsToldSo) {
  const auto parent = [](Line line) {
    const Own own = Own::on(0);
    const pid_t child = fork();
    if (child == 0) {
      const auto count = own.driver.device_count();
      must(!count.ok());
      must(count.error().message.find("forked") != std::string::npos);
      _exit(0);
    }
    int status = 0;
    must(waitpid(child, &status, 0) == child && status == 0);
    line.send('x');
  };
  run_two(parent, [](Line line) { line.receive<char>(); });
}

}  // namespace
}  // namespace tutti::cuda
