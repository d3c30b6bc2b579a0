// The names of NCCL's variables: those that Tutti maps, those that it knows and has nothing for, and those that begin
// with NCCL_ but are read by others. Constants. Any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tutti::nccl {

// One that environment.cc has a meaning for.
struct MappedName {
  std::string_view name;
  bool is_number = false;
};

// Sorted by name.
std::span<const MappedName> mapped_names();

// Read by PyTorch, nccl-tests, build systems, images: not NCCL's, and none of Tutti's business.
bool is_foreign(std::string_view name);

// Why `name`, which is none of mapped_names(), has no effect, as the end of a sentence that begins with the name.
// Empty: with this value Tutti does what is asked for anyway.
std::string why_ignored(std::string_view name, std::string_view value);

// NCCL_IB_HCA as TUTTI_RDMA_DEVICES: NCCL's names are beginnings of names, unless "=" stands in front of the list.
std::string device_list(std::string_view hca);

}  // namespace tutti::nccl
