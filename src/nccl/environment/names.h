// The names of NCCL's variables: those that Tutti maps to settings, those that it knows but that have no effect, and
// those that begin with NCCL_ but are read by other software. All data is constant. All functions may be called from
// any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tutti::nccl {

// A variable for which environment.cc has a meaning.
struct MappedName {
  std::string_view name;
  bool is_number = false;
};

// The mapped variables, sorted by name.
std::span<const MappedName> mapped_names();

// Whether `name` is read by other software (PyTorch, nccl-tests, build systems, container images) and not by NCCL.
// Such variables are not reported.
bool is_foreign(std::string_view name);

// The reason why `name`, which must not be in mapped_names(), has no effect. The text completes the sentence
// "NAME=VALUE has no effect: ...". Empty if Tutti does in any case what this value requests.
std::string why_ignored(std::string_view name, std::string_view value);

// The value of TUTTI_RDMA_DEVICES that corresponds to `hca`, a value of NCCL_IB_HCA. NCCL's names are prefixes of
// device names, unless "=" precedes the list.
std::string device_list(std::string_view hca);

}  // namespace tutti::nccl
