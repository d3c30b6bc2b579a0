// WorkShares: which ranks do which shares of an all-reduce or reduce by single copy (single_copy.h). Normally each rank
// does its own share. If some ranks share a core, a rank also does the shares of ranks that have advertised their
// memory but are probably not running. Only the engine's driver uses an object.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "executor/mailbox_board.h"

namespace tutti {

class WorkShares {
 public:
  explicit WorkShares(MailboxBoard& marks) : marks_(marks) {}  // `marks` must outlive this object

  // Starts the next call. Until begin() is called, take_of_others() finds nothing.
  void reset();
  // `cpus`, indexed by rank: the core on which the rank runs. The same on all ranks. It must stay valid until reset().
  void begin(const std::vector<std::int32_t>& cpus);
  // Takes the share of rank `of`. Returns false if another rank has claimed it, which is possible only if some ranks
  // share a core.
  bool take(std::uint32_t of);
  // Takes a share that no rank has claimed yet: of a rank that cannot run now because this rank occupies its core or,
  // if `on_other_cores` is true, of any rank. Returns the owner of the share. Returns nothing if there is no such
  // share, or if no ranks share a core.
  std::optional<std::uint32_t> take_of_others(bool on_other_cores);
  // Whether this rank has taken the share of `owner`.
  bool took(std::uint32_t owner) const { return taken_[owner]; }

 private:
  MailboxBoard& marks_;
  const std::vector<std::int32_t>* cpus_ = nullptr;  // the argument of begin(); null before
  std::vector<bool> taken_;                          // the shares that this rank has taken, indexed by their owner
  bool crowded_ = false;                             // some ranks share a core, so ranks do the shares of others
};

}  // namespace tutti
