// Selects the data path for messages between machines: verbs, UCX, or TCP. `tutti topo --transports` shows all of them,
// and the reasons why the others are not selected. find_data_path() logs this for the paths that it has checked.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "transports/rdma/data_path.h"

namespace tutti::detail {

// A data path between machines, as it is available on this machine.
struct PathCandidate {
  std::string name;  // "verbs", "ucx" or "tcp"
  bool usable = false;
  bool chosen = false;
  // Properties of the path, and the reasons why it was not selected, or why it or one of its ports cannot be used. If
  // "tcp" was not selected, there is no reason in the list.
  std::vector<std::string> words;
};

// Returns all paths, usable on this machine or not, in the order of preference. Thread-safe. Searches for devices and
// loads libraries, but changes no other state.
std::vector<PathCandidate> path_candidates(const Config& config);

// Returns the maker of the selected path, or null if neither verbs nor UCX is selected. Errors: kConfig if
// TUTTI_TRANSPORT names a path that is not available, or one that cannot be encrypted while TUTTI_ENCRYPT is 1; those
// of opening the selected path.
Result<std::shared_ptr<DataPathMaker>> find_data_path(const Config& config, const Log& log);

}  // namespace tutti::detail
