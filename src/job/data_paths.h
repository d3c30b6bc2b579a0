// Which data path carries a rank's messages between machines: verbs, UCX, or none, which is TCP. What is chosen and why
// the others were not goes to the log, and to `tutti topo --transports`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "transports/rdma/data_path.h"

namespace tutti::detail {

// One way between machines, as it stands on this one.
struct PathCandidate {
  std::string name;  // "verbs", "ucx", "tcp"
  bool usable = false;
  bool chosen = false;
  std::vector<std::string> words;  // what it has, or why it cannot be had or was not chosen
};

// Of this machine, in the order of preference. Thread-safe. Looks for devices, opens libraries; changes nothing.
std::vector<PathCandidate> path_candidates(const Config& config);

// Null: TCP. Errors: kUnsupported or kConfig where the configuration asks for one by name and it cannot be had.
Result<std::shared_ptr<DataPathMaker>> find_data_path(const Config& config, const Log& log);

}  // namespace tutti::detail
