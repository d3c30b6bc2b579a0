// UcxSlots: memory of this rank's into which one peer writes the long messages of one lane, by UCX's puts.
//
// Registered from its making until its end, which comes after that of the worker: nobody writes any more then.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transports/tcp/socket.h"
#include "transports/ucx/library.h"

namespace tutti {

class UcxSlots {
 public:
  // `count` slots of `bytes`. Errors: kSystem, with UCX's words: the limit of locked memory, mostly.
  static Result<std::unique_ptr<UcxSlots>> create(std::shared_ptr<UcxContext> context, std::uint32_t count,
                                                  std::uint32_t bytes);
  ~UcxSlots();
  UcxSlots(const UcxSlots&) = delete;
  UcxSlots& operator=(const UcxSlots&) = delete;

  const std::byte* slot(std::uint64_t number) const { return memory_.get() + number % count_ * stride_; }
  const std::string& offer() const { return offer_; }  // what the peer needs to write: a UcxOffer and a key

 private:
  UcxSlots(std::shared_ptr<UcxContext> context, std::uint32_t count, std::uint64_t stride);

  const std::shared_ptr<UcxContext> context_;  // shared by all of the process
  const std::uint32_t count_;
  const std::uint64_t stride_;
  const PageBytes memory_;
  ucp_mem_h handle_ = nullptr;
  std::string offer_;
};

}  // namespace tutti
