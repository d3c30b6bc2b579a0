// The names of NCCL's variables: those that Tutti maps to settings, those that have no effect (with the reasons), and
// those that begin with NCCL_ but are read by other software. Also translates the value of one of the mapped variables,
// NCCL_IB_HCA. All data is constant. All functions may be called from any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tutti::nccl {

// The mapped variables, sorted by name: those for which environment.cc has a meaning.
std::span<const std::string_view> mapped_names();

// Whether `name` begins with NCCL_ but is read by other software (PyTorch, nccl-tests, NVIDIA's tuner and profiler
// plugins, build systems, container images) and not by NCCL. Such variables are not reported to the user as variables
// without effect.
bool is_foreign(std::string_view name);

// The reason why the variable `name`, which must not be in mapped_names(), has no effect. The text completes the
// sentence "NAME=VALUE has no effect: ...". Empty if the value requests nothing that Tutti does not always do, so
// that there is nothing to report.
std::string why_ignored(std::string_view name, std::string_view value);

// The value of TUTTI_RDMA_DEVICES that corresponds to `hca`, a value of NCCL_IB_HCA. In NCCL_IB_HCA, each name is a
// prefix of device names, unless "=" precedes the list. For example, "mlx5" becomes "mlx5*", and "=mlx5_0" becomes
// "mlx5_0".
std::string device_list(std::string_view hca);

}  // namespace tutti::nccl
