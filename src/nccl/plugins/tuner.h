// Tuner: the tuner plugin of NCCL_TUNER_PLUGIN for one communicator. For each collective it passes the predicted costs
// to the plugin, and takes the algorithm that is cheapest after the plugin has changed them.
//
// The plugin runs on each rank, so it must give the same answers on all ranks. If it does not, the ranks run different
// algorithms, and the call fails with a message that names a rank and both algorithms.
//
// Threads: choose() may be called by several threads; it calls the plugin once at a time for a communicator. init and
// finalize of the plugin never run at the same time in a process.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "nccl/plugins/comm_facts.h"
#include "nccl/plugins/cost_table.h"
#include "nccl/plugins/plugin_file.h"
#include "nccl/plugins/tuner_interface.h"

namespace tutti::nccl {

// The functions of a plugin, whatever its version is.
struct TunerFunctions {
  PluginFile file;
  GetCollInfo get_coll_info = nullptr;
  TunerEnd end = nullptr;
};
// The functions in the table of an opened plugin. Nothing, and a warning, if one of them is null.
std::optional<TunerFunctions> tuner_functions(const PluginFile& file, const Log& log);

class Tuner {
 public:
  // The tuner of a new communicator. Null if there is no plugin, or if the plugin's init fails; then there is a
  // warning. The plugin is opened at the first call of this function in the process.
  static std::unique_ptr<Tuner> create(const PluginFacts& facts);
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  // The algorithm for a collective. `bytes`: the length of a rank's longer buffer. Returns `otherwise` if the plugin
  // has changed no cost, has failed, or has left no entry; in the last two cases there is a warning, once for each
  // communicator.
  Algorithm choose(CollectiveKind kind, std::size_t bytes, const PredictUs& predict, Algorithm otherwise);

 private:
  Tuner(const TunerFunctions& functions, void* context) : functions_(functions), context_(context) {}
  template <class... Args>
  void warn_once(fmt::format_string<Args...> format, Args&&... args);

  const TunerFunctions& functions_;  // valid until the process ends
  void* const context_;              // the plugin's; may be null
  std::mutex mutex_;                 // held while the plugin changes costs
  std::atomic<bool> has_warned_{false};
};

}  // namespace tutti::nccl
