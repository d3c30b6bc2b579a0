// The data path over UCX (openucx.org). Its library is opened at run time. UCX selects transports and devices according
// to its own settings (UCX_TLS, UCX_NET_DEVICES, ...).
#pragma once

#include <memory>
#include <string>

#include "transports/rdma/data_path.h"
#include "transports/ucx/puts.h"

namespace tutti {

// Returns the version, for example "UCX 1.13.1". Errors: kUnsupported if this build was made without UCX, or if the
// library is missing on this machine or has an unsuitable version. Thread-safe.
Result<std::string> find_ucx();

// Errors: kUnsupported, kSystem (with the message of UCX).
Result<std::shared_ptr<DataPathMaker>> make_ucx_maker(UcxPuts puts = UcxPuts::kByCards);

}  // namespace tutti
