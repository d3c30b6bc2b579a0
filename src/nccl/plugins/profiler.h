// Profiler: the profiler plugin of NCCL_PROFILER_PLUGIN for one communicator. It passes events to the plugin;
// ../call_events.h decides which ones.
//
// The plugin sets a mask of events, which all communicators of the process share, as in NCCL, and may change it at any
// time. All functions may be called from any thread; the plugin's functions for events may therefore run in several
// threads at the same time, as in NCCL. Its init and finalize never do.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "nccl/plugins/comm_facts.h"
#include "nccl/plugins/plugin_file.h"
#include "nccl/plugins/profiler_interface.h"
#include "tutti/types.h"

namespace tutti::nccl {

// The functions of a plugin, whatever its version is.
struct ProfilerFunctions {
  PluginFile file;
  EventStart start_event = nullptr;
  EventStop stop_event = nullptr;
  EventState record_event_state = nullptr;
  ProfilerEnd finalize = nullptr;
};
// The functions in the table of an opened plugin. Nothing, and a warning, if one of them is null.
std::optional<ProfilerFunctions> profiler_functions(const PluginFile& file, const Log& log);

class Profiler {
 public:
  // The profiler of a new communicator. Null if there is no plugin, or if the plugin's init fails; then there is a
  // warning. The plugin is opened at the first call of this function in the process.
  static std::unique_ptr<Profiler> create(const PluginFacts& facts);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // The bits of ProfiledEvent that the plugin asks for at the moment.
  static std::uint32_t mask();

  // Starts an event and returns its handle. Null: the plugin does not record it, or failed. For a plugin of version 4,
  // the types of events that it does not know are left out, and the parent of a collective or transfer is its group.
  void* start(EventDescription event) const;
  void stop(void* event) const;                      // null: does nothing
  void record(void* group, GroupState state) const;  // null: does nothing

  // Returns the number of this call of the collective on this communicator, from 0. Each call of this function counts
  // one.
  std::uint64_t count(CollectiveKind kind) { return counts_[static_cast<std::size_t>(kind)]++; }

 private:
  Profiler(const ProfilerFunctions& functions, void* context) : functions_(functions), context_(context) {}

  const ProfilerFunctions& functions_;                   // valid until the process ends
  void* const context_;                                  // the plugin's; if null, finalize is not called
  std::array<std::atomic<std::uint64_t>, 10> counts_{};  // by CollectiveKind
};

}  // namespace tutti::nccl
