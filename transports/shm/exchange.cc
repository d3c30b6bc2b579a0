#include "transports/shm/exchange.h"

namespace tutti {

void InProcessHub::insert(std::uint32_t rank, std::uint32_t id, std::shared_ptr<Mapping> mapping) {
  const std::scoped_lock lock(mutex_);
  mappings_[{rank, id}] = std::move(mapping);
}

void InProcessHub::erase(std::uint32_t rank, std::uint32_t id) {
  std::shared_ptr<Mapping> last;  // unmapped after the lock is gone
  const std::scoped_lock lock(mutex_);
  const auto found = mappings_.find({rank, id});
  if (found == mappings_.end()) return;
  last = std::move(found->second);
  mappings_.erase(found);
}

std::shared_ptr<Mapping> InProcessHub::find(std::uint32_t rank, std::uint32_t id) const {
  const std::scoped_lock lock(mutex_);
  const auto found = mappings_.find({rank, id});
  return found == mappings_.end() ? nullptr : found->second;
}

}  // namespace tutti
