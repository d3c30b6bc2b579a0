// Tests of several processes with the fake driver: memory of one process is used by another, and a forked
// process gets an error. The parent of the processes must not call the driver, because a forked child cannot use a
// driver that its parent has initialized.
#include <optional>

#include "cuda/virtual_memory.h"
#include "tests/device/unit/processes.h"

namespace tutti::cuda {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20U;

TEST(CudaProcesses, MemoryOfOneIsReadAndWrittenByTheOther) {
  const auto owner = [](ProcessChannel channel) {
    const DeviceSession own = DeviceSession::on(0);
    const auto memory = DeviceMemory::allocate(own.driver, 1000).value();
    const auto stream = Stream::create(own.driver).value();
    must(own.api.memset_d8_async(memory.address(), 5, 1000, stream.handle()) == CUresult::kSuccess);
    must(stream.synchronize().ok());
    const CUipcMemHandle handle = memory.share().value();
    CUdeviceptr twice = 0;
    must(own.api.ipc_open_mem_handle(&twice, handle, kIpcLazyPeerAccess) == CUresult::kInvalidContext);
    channel.send(handle);
    channel.receive<char>();
    std::uint8_t byte = 0;
    must(own.api.memcpy_dtoh_async(&byte, memory.address() + 999, 1, stream.handle()) == CUresult::kSuccess);
    must(byte == 6);
  };
  const auto user = [](ProcessChannel channel) {
    const DeviceSession own = DeviceSession::on(1);
    const auto handle = channel.receive<CUipcMemHandle>();
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
      must(own.api.mem_free(memory.address()) == CUresult::kInvalidValue);  // memory of another process
      must(stream.synchronize().ok());
    }
    channel.send('x');
  };
  run_two([&](ProcessChannel channel) { owner(channel); }, [&](ProcessChannel channel) { user(channel); });
}

TEST(CudaProcesses, AHandleOfMemoryThatIsGoneIsRefused) {
  const auto owner = [](ProcessChannel channel) {
    const DeviceSession own = DeviceSession::on(0);
    auto memory = std::optional(DeviceMemory::allocate(own.driver, 1000).value());
    const CUipcMemHandle handle = memory->share().value();
    memory.reset();
    const auto other = DeviceMemory::allocate(own.driver, 1000).value();  // may reuse the file descriptor
    channel.send(handle);
    channel.receive<char>();
  };
  const auto user = [](ProcessChannel channel) {
    const DeviceSession own = DeviceSession::on(0);
    const auto handle = channel.receive<CUipcMemHandle>();
    const auto memory = PeerMemory::open(own.driver, handle);
    must(!memory.ok());
    must(memory.error().message.find("CUDA_ERROR_MAP_FAILED") != std::string::npos);
    must(!PeerMemory::open(own.driver, CUipcMemHandle{}).ok());
    channel.send('x');
  };
  run_two([&](ProcessChannel channel) { owner(channel); }, [&](ProcessChannel channel) { user(channel); });
}

TEST(CudaProcesses, PhysicalMemoryTravelsAsADescriptor) {
  constexpr std::size_t kBytes = std::size_t{2} << 20U;
  const auto map = [](const DeviceSession& own, CUmemGenericAllocationHandle handle) {
    CUdeviceptr address = 0;
    const CUmemAccessDesc access{{MemLocationType::kDevice, own.primary.device()}, MemAccess::kReadWrite};
    must(own.api.mem_address_reserve(&address, kBytes, 0, 0, 0) == CUresult::kSuccess);
    must(own.api.mem_map(address, kBytes, 0, handle, 0) == CUresult::kSuccess);
    must(own.api.mem_set_access(address, kBytes, &access, 1) == CUresult::kSuccess);
    must(own.api.mem_release(handle) == CUresult::kSuccess);
    return address;
  };
  const auto unmap = [](const DeviceSession& own, CUdeviceptr address) {
    must(own.api.mem_unmap(address, kBytes) == CUresult::kSuccess);
    must(own.api.mem_address_free(address, kBytes) == CUresult::kSuccess);
  };
  const auto owner = [&](ProcessChannel channel) {
    const DeviceSession own = DeviceSession::on(0);
    const CUmemAllocationProp properties{};
    CUmemGenericAllocationHandle handle = 0;
    must(own.api.mem_create(&handle, kBytes, &properties, 0) == CUresult::kSuccess);
    int file = -1;
    must(own.api.mem_export_to_shareable_handle(&file, handle, MemHandleType::kPosixFd, 0) == CUresult::kSuccess);
    channel.send_file(file);
    close(file);
    const CUdeviceptr address = map(own, handle);
    const auto stream = Stream::create(own.driver).value();
    must(own.api.stream_wait_value32(stream.handle(), address, 77, kWaitEqual) == CUresult::kSuccess);
    must(stream.synchronize().ok());
    channel.send('x');
    unmap(own, address);
  };
  const auto user = [&](ProcessChannel channel) {
    const DeviceSession own = DeviceSession::on(1);
    const int file = channel.receive_file();
    CUmemGenericAllocationHandle handle = 0;
    must(own.api.mem_import_from_shareable_handle(&handle, std::bit_cast<void*>(std::intptr_t{file}),
                                                  MemHandleType::kPosixFd) == CUresult::kSuccess);
    close(file);
    const CUdeviceptr address = map(own, handle);
    const auto stream = Stream::create(own.driver).value();
    must(own.api.stream_write_value32(stream.handle(), address, 77, 0) == CUresult::kSuccess);
    channel.receive<char>();
    unmap(own, address);
  };
  run_two([&](ProcessChannel channel) { owner(channel); }, [&](ProcessChannel channel) { user(channel); });
}

TEST(CudaProcesses, AProcessThatWasForkedAfterUseIsToldSo) {
  const auto parent = [](ProcessChannel channel) {
    const DeviceSession own = DeviceSession::on(0);
    const pid_t child = fork();
    if (child == 0) {
      const auto count = own.driver.device_count();
      must(!count.ok());
      must(count.error().message.find("forked") != std::string::npos);
      _exit(0);
    }
    int status = 0;
    must(waitpid(child, &status, 0) == child && status == 0);
    channel.send('x');
  };
  run_two(parent, [](ProcessChannel channel) { channel.receive<char>(); });
}

TEST(CudaProcesses, MapEachOthersVirtualMemory) {
  run_two(
      [](ProcessChannel channel) {
        const DeviceSession own = DeviceSession::on(0);
        const auto memory = ShareableMemory::allocate(own.driver, 2 * kGranule).value();
        const auto physical = PhysicalMemory::behind(own.driver, memory.address());
        must(physical.ok() && physical->has_value());
        channel.send_file((*physical)->share().value().descriptor());
        must(channel.receive<int>() == 1);
        const auto stream = Stream::create(own.driver).value();
        int word = 0;
        must(own.api.memcpy_dtoh_async(&word, memory.address() + kGranule, 4, stream.handle()) == CUresult::kSuccess);
        must(stream.synchronize().ok() && word == 0x06060606);
      },
      [](ProcessChannel channel) {
        const DeviceSession own = DeviceSession::on(1);
        const auto physical = PhysicalMemory::import(own.driver, FileDescriptor(channel.receive_file()));
        must(physical.ok());
        auto mapped = MappedMemory::reserve(own.driver, 2 * kGranule).value();
        must(mapped.map(*physical, 2 * kGranule).ok());
        must(mapped.allow(std::vector<int>{1}).ok());
        const auto stream = Stream::create(own.driver).value();
        must(own.api.memset_d8_async(mapped.address() + kGranule, 6, 4, stream.handle()) == CUresult::kSuccess);
        must(stream.synchronize().ok());
        channel.send(1);
      });
}

}  // namespace
}  // namespace tutti::cuda
