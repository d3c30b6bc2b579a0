#include "nccl/plugins/profiler.h"

#include <mutex>

#include "nccl/environment/environment.h"

namespace tutti::nccl {
namespace {

const PluginType& profiler_type() {
  static const PluginType type{.variable = "NCCL_PROFILER_PLUGIN",
                               .file = "libnccl-profiler",
                               .symbol = "ncclProfiler_v",
                               .versions = {6, 5, 4},
                               .other_versions = {7, 3, 2, 1}};
  return type;
}

// The plugin of this process; null: there is none. It is opened once, because all communicators use the same plugin.
const ProfilerFunctions* process_profiler() {
  static const ProfilerFunctions* const opened = []() -> ProfilerFunctions* {
    const auto& environment = process_settings();
    if (!environment) return nullptr;
    const auto file = open_plugin(profiler_type(), environment->profiler_plugin, plugin_log());
    if (!file) return nullptr;
    auto functions = profiler_functions(*file, plugin_log());
    // Never deleted, because threads in the background may use a communicator while the process exits.
    return functions ? new ProfilerFunctions(*std::move(functions)) : nullptr;
  }();
  return opened;
}

// Held while a plugin's init or finalize runs: NVIDIA's example gives a communicator no context if another one is being
// initialised at that moment.
std::mutex& init_mutex() {
  static auto& the = *new std::mutex;  // never destroyed: communicators may be destroyed while the process exits
  return the;
}

// The mask of events. It is global because plugins keep its address and change it later, for all communicators.
int event_mask = 0;

ncclResult_t init(const PluginFile& file, const PluginFacts& facts, void** context) {
  const std::scoped_lock lock(init_mutex());
  if (file.version == 4) {
    return static_cast<const ProfilerTableV4*>(file.table)
        ->init(context, &event_mask, facts.name, facts.comm_id, facts.nodes, facts.ranks, facts.rank, write_plugin_log);
  }
  return static_cast<const ProfilerTableV5*>(file.table)
      ->init(context, facts.comm_id, &event_mask, facts.name, facts.nodes, facts.ranks, facts.rank, write_plugin_log);
}

template <class Table>
ProfilerFunctions functions_of(const PluginFile& file, const Table& table) {
  return {.file = file,
          .start_event = table.init == nullptr ? nullptr : table.start_event,
          .stop_event = table.stop_event,
          .record_event_state = table.record_event_state,
          .finalize = table.finalize};
}

}  // namespace

std::optional<ProfilerFunctions> profiler_functions(const PluginFile& file, const Log& log) {
  const ProfilerFunctions functions = file.version == 4
                                          ? functions_of(file, *static_cast<const ProfilerTableV4*>(file.table))
                                          : functions_of(file, *static_cast<const ProfilerTableV5*>(file.table));
  if (functions.start_event != nullptr && functions.stop_event != nullptr && functions.record_event_state != nullptr &&
      functions.finalize != nullptr) {
    log.write(LogLevel::kInfo, "NCCL_PROFILER_PLUGIN: the profiler of {}, version {}, is used", file.name,
              file.version);
    return functions;
  }
  log.write(LogLevel::kWarn, "NCCL_PROFILER_PLUGIN: {} is not used: one of the functions in its table is null",
            file.name);
  return std::nullopt;
}

std::unique_ptr<Profiler> Profiler::create(const PluginFacts& facts) {
  const ProfilerFunctions* const functions = process_profiler();
  if (functions == nullptr) return nullptr;
  void* context = nullptr;
  const ncclResult_t result = init(functions->file, facts, &context);
  if (result == ncclSuccess) return std::unique_ptr<Profiler>(new Profiler(*functions, context));
  plugin_log().write(LogLevel::kWarn,
                     "NCCL_PROFILER_PLUGIN: {} is not used for a communicator, because its init returned {}",
                     functions->file.name, static_cast<int>(result));
  return nullptr;
}

Profiler::~Profiler() {
  // As in NCCL: plugins rely on it, for example NVIDIA's inspector without a GPU.
  if (context_ == nullptr) return;
  const std::scoped_lock lock(init_mutex());
  functions_.finalize(context_);
}

std::uint32_t Profiler::mask() { return static_cast<std::uint32_t>(__atomic_load_n(&event_mask, __ATOMIC_RELAXED)); }

void* Profiler::start(EventDescription event) const {
  if (functions_.file.version == 4) {
    switch (event.type) {
      case kGroupEvent: break;
      case kCollectiveEvent: event.parent = event.collective.group; break;
      case kTransferEvent: event.parent = event.transfer.group; break;
      default: return nullptr;
    }
  }
  void* handle = nullptr;
  const ncclResult_t result = functions_.start_event(context_, &handle, &event);
  return result == ncclSuccess ? handle : nullptr;
}

void Profiler::stop(void* event) const {
  if (event != nullptr) functions_.stop_event(event);
}

void Profiler::record(void* group, GroupState state) const {
  StateArguments arguments;
  if (group != nullptr) functions_.record_event_state(group, static_cast<std::int32_t>(state), &arguments);
}

}  // namespace tutti::nccl
