#include "transports/shm/exchange.h"

#include <unistd.h>

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

// Memory from our allocator is one mapping for all ranks of the process. Adopted memory is its owner's: it may be freed
// while a peer still looks, so each peer has a view of its own.
std::shared_ptr<Mapping> InProcessExchange::find(std::uint32_t peer, std::uint32_t id) {
  auto mapping = hub_->find(peer, id);
  const std::scoped_lock lock(mutex_);
  if (mapping == nullptr || !mapping->adopted()) {
    adopted_.erase({peer, id});
    return mapping;
  }
  auto& view = adopted_[{peer, id}];
  if (view == nullptr) {
    auto mapped = Mapping::map(dup(mapping->fd()));
    if (mapped) view = std::move(*mapped);
  }
  return view;
}

}  // namespace tutti
