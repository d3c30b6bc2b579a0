#include "nccl/plugins/tuner.h"

#include <utility>

#include "nccl/environment/environment.h"

namespace tutti::nccl {
namespace {

const PluginType& tuner_type() {
  static const PluginType type{.variable = "NCCL_TUNER_PLUGIN",
                               .file = "libnccl-tuner",
                               .symbol = "ncclTunerPlugin_v",
                               .versions = {6, 5, 4},
                               .other_versions = {7, 3, 2, 1}};
  return type;
}

// The plugin of this process; null: there is none. It is opened once, because all communicators use the same plugin.
const TunerFunctions* process_tuner() {
  static const TunerFunctions* const opened = []() -> TunerFunctions* {
    const auto& environment = process_settings();
    if (!environment) return nullptr;
    const auto file = open_plugin(tuner_type(), environment->tuner_plugin, plugin_log());
    if (!file) return nullptr;
    auto functions = tuner_functions(*file, plugin_log());
    // Never deleted, because threads in the background may use a communicator while the process exits.
    return functions ? new TunerFunctions(*std::move(functions)) : nullptr;
  }();
  return opened;
}

// Held while a plugin's init or finalize runs, because not all plugins protect the data that communicators share.
std::mutex& start_mutex() {
  static auto& the = *new std::mutex;  // never destroyed: communicators may be destroyed while the process exits
  return the;
}

ncclResult_t start(const PluginFile& file, const PluginFacts& facts, void** context) {
  const auto ranks = static_cast<std::size_t>(facts.ranks);
  const auto nodes = static_cast<std::size_t>(facts.nodes);
  const std::scoped_lock lock(start_mutex());
  if (file.version == 4) {
    return static_cast<const TunerTableV4*>(file.table)->init(ranks, nodes, write_plugin_log, context);
  }
  // As NCCL on machines whose GPUs are not joined by NVLink, each machine counts as one domain.
  NvlDomains domains{
      .count = facts.nodes, .least_ranks = facts.least_ranks_per_node, .most_ranks = facts.most_ranks_per_node};
  TunerConstants constants;
  const TunerStart init = static_cast<const TunerTableV5*>(file.table)->init;  // V6 begins with the same members
  const ncclResult_t result = init(context, facts.comm_id, ranks, nodes, write_plugin_log, &domains, &constants);
  if (result == ncclSuccess && constants != TunerConstants()) {
    plugin_log().write(
        LogLevel::kInfo,
        "NCCL_TUNER_PLUGIN: {} sets constants of NCCL's cost model: no effect, because Tutti's model has "
        "other parameters",
        file.name);
  }
  return result;
}

}  // namespace

std::optional<TunerFunctions> tuner_functions(const PluginFile& file, const Log& log) {
  TunerFunctions functions{.file = file};
  bool has_start = false;
  if (file.version == 4) {
    const auto& table = *static_cast<const TunerTableV4*>(file.table);
    functions.get_coll_info = table.get_coll_info;
    functions.end = table.destroy;
    has_start = table.init != nullptr;
  } else {
    const auto& table = *static_cast<const TunerTableV5*>(file.table);  // V6 begins with the same members
    functions.get_coll_info = table.get_coll_info;
    functions.end = table.finalize;
    has_start = table.init != nullptr;
  }
  if (has_start && functions.get_coll_info != nullptr && functions.end != nullptr) {
    log.write(LogLevel::kInfo, "NCCL_TUNER_PLUGIN: the tuner of {}, version {}, is used", file.name, file.version);
    return functions;
  }
  log.write(LogLevel::kWarn, "NCCL_TUNER_PLUGIN: {} is not used: one of the functions in its table is null", file.name);
  return std::nullopt;
}

std::unique_ptr<Tuner> Tuner::create(const PluginFacts& facts) {
  const TunerFunctions* const functions = process_tuner();
  if (functions == nullptr) return nullptr;
  void* context = nullptr;
  const ncclResult_t result = start(functions->file, facts, &context);
  if (result == ncclSuccess) return std::unique_ptr<Tuner>(new Tuner(*functions, context));
  plugin_log().write(LogLevel::kWarn,
                     "NCCL_TUNER_PLUGIN: {} is not used for a communicator, because its init returned {}",
                     functions->file.name, static_cast<int>(result));
  return nullptr;
}

Tuner::~Tuner() {
  const std::scoped_lock lock(start_mutex());
  functions_.end(context_);
}

template <class... Args>
void Tuner::warn_once(fmt::format_string<Args...> format, Args&&... args) {
  if (!has_warned_.exchange(true)) plugin_log().write(LogLevel::kWarn, format, std::forward<Args>(args)...);
}

Algorithm Tuner::choose(CollectiveKind kind, std::size_t bytes, const PredictUs& predict, Algorithm otherwise) {
  const auto function = tuned_function(kind);
  const auto& environment = process_settings();
  if (!function || !environment) return otherwise;
  const CostTable offered = predicted_costs(kind, environment->allowed_algorithms[*function],
                                            environment->allowed_protocols[*function], predict);
  if (!cheapest(kind, offered, offered)) return otherwise;  // NCCL_ALGO excludes all algorithms
  CostTable changed = offered;
  int channels = 0;  // ignored: a communicator has one number of thread blocks, TUTTI_DEVICE_BLOCKS
  ncclResult_t result = ncclSuccess;
  {
    const std::scoped_lock lock(mutex_);
    // One operation, because Tutti does not combine the calls of a group. 0: Tutti does not look whether the buffers
    // are registered, which may differ between ranks.
    result = functions_.get_coll_info(context_, static_cast<int>(*function), bytes, 1,
                                      reinterpret_cast<float**>(&changed), static_cast<int>(kAlgorithmWords.size()),
                                      static_cast<int>(kProtocolWords.size()), 0, &channels);
  }
  if (result != ncclSuccess) {
    warn_once("NCCL_TUNER_PLUGIN: {} returned {} for a call of {} bytes: Tutti chooses the algorithms of such calls",
              functions_.file.name, static_cast<int>(result), bytes);
    return otherwise;
  }
  if (changed == offered) return otherwise;
  const auto best = cheapest(kind, offered, changed);
  if (!best) {
    warn_once("NCCL_TUNER_PLUGIN: {} excludes every algorithm that Tutti has for a call of {} bytes: Tutti chooses",
              functions_.file.name, bytes);
    return otherwise;
  }
  return *best == Algorithm::kAuto ? otherwise : *best;
}

}  // namespace tutti::nccl
