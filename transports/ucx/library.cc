#include "transports/ucx/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/shared_library.h"
#include "base/thread.h"
#include "transports/ucx/resources.h"
#include "transports/ucx/slots.h"

namespace tutti {
namespace {

constexpr unsigned kMajor = 1;
constexpr unsigned kLeastMinor = 13;

Error unsupported(std::string message) {
  return {ErrorCode::kUnsupported, ErrorScope::kCommunicator, -1, std::move(message)};
}

void find_all(SharedLibrary& library, UcxLibrary& ucx) {
  library.find(ucx.get_version, "ucp_get_version");
  library.find(ucx.init_version, "ucp_init_version");
  library.find(ucx.cleanup, "ucp_cleanup");
  library.find(ucx.config_read, "ucp_config_read");
  library.find(ucx.config_release, "ucp_config_release");
  library.find(ucx.worker_create, "ucp_worker_create");
  library.find(ucx.worker_destroy, "ucp_worker_destroy");
  library.find(ucx.worker_progress, "ucp_worker_progress");
  library.find(ucx.worker_get_efd, "ucp_worker_get_efd");
  library.find(ucx.worker_arm, "ucp_worker_arm");
  library.find(ucx.worker_get_address, "ucp_worker_get_address");
  library.find(ucx.worker_release_address, "ucp_worker_release_address");
  library.find(ucx.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  library.find(ucx.ep_create, "ucp_ep_create");
  library.find(ucx.ep_close_nbx, "ucp_ep_close_nbx");
  library.find(ucx.am_send_nbx, "ucp_am_send_nbx");
  library.find(ucx.am_recv_data_nbx, "ucp_am_recv_data_nbx");
  library.find(ucx.am_data_release, "ucp_am_data_release");
  library.find(ucx.mem_map, "ucp_mem_map");
  library.find(ucx.mem_unmap, "ucp_mem_unmap");
  library.find(ucx.rkey_pack, "ucp_rkey_pack");
  library.find(ucx.rkey_buffer_release, "ucp_rkey_buffer_release");
  library.find(ucx.ep_rkey_unpack, "ucp_ep_rkey_unpack");
  library.find(ucx.rkey_destroy, "ucp_rkey_destroy");
  library.find(ucx.put_nbx, "ucp_put_nbx");
  library.find(ucx.ep_flush_nbx, "ucp_ep_flush_nbx");
  library.find(ucx.ep_print_info, "ucp_ep_print_info");
  library.find(ucx.context_print_info, "ucp_context_print_info");
  library.find(ucx.request_check_status, "ucp_request_check_status");
  library.find(ucx.request_free, "ucp_request_free");
  library.find(ucx.status_string, "ucs_status_string");
}

Result<UcxLibrary> load_library() {
  auto library = SharedLibrary::open("libucp.so.0", RTLD_NODELETE);
  if (!library) {
    return unsupported(
        fmt::format("UCX cannot be opened ({}): install it (libucx0), or name its folder in "
                    "LD_LIBRARY_PATH",
                    library.error().message));
  }
  UcxLibrary ucx;
  find_all(*library, ucx);
  const char* const missing = library->missing();
  if (ucx.get_version == nullptr) return unsupported("libucp.so.0 is not UCX: it has no ucp_get_version");
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucx.get_version(&major, &minor, &release);
  ucx.version = fmt::format("{}.{}.{}", major, minor, release);
  if (major != kMajor || minor < kLeastMinor || missing != nullptr) {
    const std::string lacks = missing == nullptr ? "" : fmt::format(" and has no {}", missing);
    return unsupported(fmt::format("libucp.so.0 is UCX {}{}: version {}.{} or a later {}.x is needed", ucx.version,
                                   lacks, kMajor, kLeastMinor, kMajor));
  }
  return ucx;
}

// A worker that could not be destroyed.
struct RetainedWorker {
  std::shared_ptr<UcxContext> context;
  ucp_worker_h worker;
  std::vector<std::unique_ptr<UcxSlots>> slots;
};

// The state of UCX in this process. There is one, because a process has one copy of the library. Ranks with the same
// UcxPuts normally share one context, because contexts are expensive (see UcxContext::shared()).
struct Process {
  std::mutex mutex;  // guards all members below
  std::optional<UcxLibrary> opened;
  std::weak_ptr<UcxContext> context;
  std::vector<RetainedWorker> retained;
};

// Never destroyed, because threads may still use it while the process ends.
Process& process() {
  alignas(Process) static std::byte memory[sizeof(Process)];
  static auto* const made = new (memory) Process();
  return *made;
}

Result<ucp_context_h> make_context(const UcxLibrary& ucx, bool puts) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx.config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return ucx_error(ucx, "reading its settings (UCX_*)", status);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | (puts ? UCP_FEATURE_RMA : 0);
  params.mt_workers_shared = 1;  // several threads use the context, if ranks are threads of one process
  ucp_context_h context = nullptr;
  const SignalsBlocked blocked;  // UCX may start a thread, which must not receive signals
  status = ucx.init_version(kMajor, kLeastMinor, &params, config, &context);
  ucx.config_release(config);
  if (status != UCS_OK) return ucx_error(ucx, "starting it (are UCX_TLS and UCX_NET_DEVICES right?)", status);
  return context;
}

// Creates a context that permits remote writes if `puts` requires them, or if UCX uses a NIC that can execute them. If
// the machine has RDMA devices, it is only known after a context was created whether UCX uses such a NIC.
Result<ucp_context_h> make_context(const UcxLibrary& ucx, UcxPuts puts) {
  const bool cards = puts == UcxPuts::kByCards && access("/sys/class/infiniband", F_OK) == 0;
  auto made = make_context(ucx, cards || puts == UcxPuts::kAlways);
  if (!made || !cards ||
      contains_nic_write_transport(capture_output([&](std::FILE* file) { ucx.context_print_info(*made, file); }))) {
    return made;
  }
  ucx.cleanup(*made);
  return make_context(ucx, false);  // without remote writes, because UCX uses no NIC that can execute them
}

}  // namespace

std::string capture_output(const std::function<void(std::FILE* file)>& write) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const file = open_memstream(&text, &bytes);
  if (file == nullptr) return {};
  write(file);
  std::fclose(file);
  std::string result(text, bytes);
  std::free(text);
  return result;
}

Error ucx_error(const UcxLibrary& library, const std::string& doing, ucs_status_t status) {
  return {ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
          fmt::format("UCX {}: {}: {}", library.version, doing, library.status_string(status))};
}

Result<const UcxLibrary*> UcxLibrary::open() {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  if (!own.opened) {
    Result<UcxLibrary> loaded = load_library();
    if (!loaded) return loaded.error();
    own.opened = *loaded;
  }
  return &*own.opened;
}

Result<std::shared_ptr<UcxContext>> UcxContext::shared(UcxPuts puts) {
  auto library = UcxLibrary::open();
  if (!library) return library.error();
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  std::shared_ptr<UcxContext> context = own.context.lock();
  if (context != nullptr && context->own_process() && context->puts() == puts) return context;
  auto handle = make_context(**library, puts);
  if (!handle) return handle.error();
  context = std::shared_ptr<UcxContext>(new UcxContext(**library, *handle, puts));  // private constructor
  own.context = context;
  return context;
}

void UcxContext::retain(std::shared_ptr<UcxContext> context, ucp_worker_h worker,
                        std::vector<std::unique_ptr<UcxSlots>> slots) {
  Process& own = process();
  const std::lock_guard lock(own.mutex);
  own.retained.push_back({.context = std::move(context), .worker = worker, .slots = std::move(slots)});
}

UcxContext::UcxContext(const UcxLibrary& library, ucp_context_h handle, UcxPuts puts)
    : library_(library), handle_(handle), puts_(puts), process_(getpid()) {}

UcxContext::~UcxContext() {
  if (own_process()) library_.cleanup(handle_);
}

bool UcxContext::own_process() const { return getpid() == process_; }

}  // namespace tutti
