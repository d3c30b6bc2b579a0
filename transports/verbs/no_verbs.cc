// Replaces the other sources of this folder if the headers of libibverbs were not available when Tutti was built. The
// two functions that return a Result return kUnsupported.
#include "transports/verbs/verbs_maker.h"

namespace tutti {
namespace {

Error not_built() {
  return {ErrorCode::kUnsupported, ErrorScope::kCommunicator, -1,
          "this build has no verbs: install libibverbs' headers (libibverbs-dev) and build again"};
}

}  // namespace

std::string describe(const VerbsPort& port) { return port.device; }
Result<VerbsPorts> find_verbs_ports(const VerbsSettings&) { return not_built(); }
Result<std::shared_ptr<DataPathMaker>> make_verbs_maker(const VerbsSettings&) { return not_built(); }

}  // namespace tutti
