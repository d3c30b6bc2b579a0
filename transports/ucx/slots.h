// UcxSlots: registered memory of this rank into which one peer writes the long messages of one lane, with
// ucp_put_nbx.
//
// The memory remains registered as long as this object exists. Destroy it after the worker, because peers cannot
// write into it any more then.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transports/tcp/socket.h"
#include "transports/ucx/library.h"

namespace tutti {

class UcxSlots {
 public:
  // `count` slots of `bytes` bytes each. Errors: kSystem, with the message of UCX; the usual cause is the limit of
  // locked memory.
  static Result<std::unique_ptr<UcxSlots>> create(std::shared_ptr<UcxContext> context, std::uint32_t count,
                                                  std::uint32_t bytes);
  ~UcxSlots();
  UcxSlots(const UcxSlots&) = delete;
  UcxSlots& operator=(const UcxSlots&) = delete;

  const std::byte* slot(std::uint64_t number) const { return memory_.get() + number % count_ * stride_; }
  // The data that the peer needs to write into the slots: a UcxSlotsOffer, followed by the packed key.
  const std::string& offer() const { return offer_; }

 private:
  UcxSlots(std::shared_ptr<UcxContext> context, std::uint32_t count, std::uint64_t stride);

  const std::shared_ptr<UcxContext> context_;  // can be shared with other ranks of the process
  const std::uint32_t count_;
  const std::uint64_t stride_;
  const PageBytes memory_;
  ucp_mem_h handle_ = nullptr;
  std::string offer_;
};

}  // namespace tutti
