// The root of libtutti.so. It refers to some of the exported functions, so that the linker includes the object files of
// all exported functions, which are in static libraries.
#include "tutti/tutti.h"

namespace tutti {
namespace {

// The object files of these functions, and the object files that these need, define all public functions.
[[gnu::used]] const auto kErrors = static_cast<std::string (*)(const Error&)>(&to_string);
[[gnu::used]] const auto kNames = static_cast<bool (*)(DataType)>(&is_valid);
[[gnu::used]] const auto kCreate = &Communicator::create;
[[gnu::used]] const auto kCollectives = &Communicator::barrier;
[[gnu::used]] const auto kGroups = &Group::run;
[[gnu::used]] const auto kUniqueId = &UniqueId::create;
[[gnu::used]] const auto kElastic = &Elastic::join;
[[gnu::used]] const auto kPlans = &UserPlan::parse_json;
[[gnu::used]] const auto kBuiltPlans = &PlanBuilder::build;

}  // namespace
}  // namespace tutti
