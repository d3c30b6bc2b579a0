// The data path by UCX (openucx.org), opened at run time. UCX chooses among what it knows by its own settings (UCX_TLS,
// UCX_NET_DEVICES ...).
#pragma once

#include <memory>
#include <string>

#include "transports/rdma/data_path.h"
#include "transports/ucx/puts.h"

namespace tutti {

// "UCX 1.13.1". Errors: kUnsupported: this build or this machine has none. Thread-safe.
Result<std::string> find_ucx();

// Errors: kUnsupported, kSystem (with UCX's words).
Result<std::shared_ptr<DataPathMaker>> make_ucx_maker(UcxPuts puts = UcxPuts::kByCards);

}  // namespace tutti
