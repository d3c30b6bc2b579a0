// Mapping: memory that other processes can map as well. It is a memfd: a file without a name that the kernel deletes
// when no process has it open or mapped any more, even after kill -9. Some sandboxes forbid memfd_create; in that case
// only ranks that are threads of one process can share mappings, see refusal().
//
// A resource: when the object is destroyed, its memory is unmapped, or becomes private again if it was adopted (see
// retire()), or stays mapped if it was lent. Mappings are owned by shared_ptr, because ranks that are threads of one
// process use the same mapping and are destroyed in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "tutti/result.h"

namespace tutti {

class Mapping {
 public:
  // The error that explains why this process cannot pass mappings to other processes: the operating system forbids
  // memfd_create, or does not have it. Empty if that is not the case. It is tested once, and the result holds until the
  // process exits. If there is such an error, create() returns memory that only this process can map (fd() is -1), and
  // adopt() fails with this error, but with the scope ErrorScope::kCall.
  static const std::optional<Error>& refusal();
  // Allocates zeroed pages. `huge` requests huge pages; the kernel may ignore that. Errors: kSystem; the message
  // contains advice, for example the limit that must be raised.
  static Result<std::shared_ptr<Mapping>> create(std::size_t bytes, bool huge);
  // Maps all of a memfd that was received from a peer. Takes ownership of the descriptor.
  static Result<std::shared_ptr<Mapping>> map(int fd);
  // Maps the memory of `mapping` a second time, at another address of this process. mapping.fd() must not be -1.
  static Result<std::shared_ptr<Mapping>> map_again(const Mapping& mapping);
  // Converts the private pages at [data, data+bytes) into shared pages. The range must be page-aligned. Contents and
  // address do not change. retire() normally makes the pages private again; if it was not called, the destructor calls
  // it. Errors: kInvalidArgument if the memory is not private, anonymous and writable; kSystem if a system call fails.
  static Result<std::shared_ptr<Mapping>> adopt(void* data, std::size_t bytes);
  // Wraps memory that other code of this process has mapped from the memfd `fd`, and that stays mapped as long as the
  // object exists. Takes ownership of the descriptor. The object neither unmaps nor frees the memory.
  static std::shared_ptr<Mapping> lend(int fd, std::byte* data, std::size_t bytes);

  ~Mapping();
  // The owner of the memory calls it when the mapping is no longer needed, although peers may still have it mapped.
  // Adopted memory becomes private again, with the same contents; if the system refuses that, it stays shared. Lent
  // memory stays as it is. The pages of other memory are freed, after which peers read zeros there; if fd() is -1, they
  // are not freed. A second call has no effect.
  void retire();
  bool adopted() const { return origin_ == Origin::kAdopted; }
  bool lent() const { return origin_ == Origin::kLent; }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  // The first page of the memory. A large mapping of a peer's memory normally has a separate view of this page, which
  // saves page tables: see kLarge in mapping.cc.
  std::byte* first_page() const { return first_page_ != nullptr ? first_page_ : data_; }
  std::size_t size() const { return bytes_; }
  // The descriptor that can be passed to peers. -1 if the mapping was created by map() or map_again(), or if
  // refusal() contains an error.
  int fd() const { return fd_; }

 private:
  static Result<std::shared_ptr<Mapping>> map_open(int fd);  // does not take ownership of the descriptor
  enum class Origin : std::uint8_t { kMapped, kAdopted, kLent };
  Mapping(int fd, std::byte* data, std::size_t bytes, Origin origin)
      : fd_(fd), data_(data), bytes_(bytes), origin_(origin) {}

  int fd_;
  std::byte* data_;
  std::byte* first_page_ = nullptr;  // the separate view; null if there is none
  std::size_t bytes_;
  Origin origin_;
  bool retired_ = false;
};

// The page size of the operating system, in bytes.
std::size_t page_size();

}  // namespace tutti
