// leak_until_exit(): keeps an object until the process exits, and never destroys it. Mainly for objects with memory
// that a GPU may still use: freeing that memory could corrupt other data, or block until the GPU is idle. Any thread
// may call it.
#pragma once

#include <deque>
#include <mutex>
#include <utility>

#include "base/exceptions.h"

namespace tutti::detail {

template <class T>
void leak_until_exit(T what) noexcept {
  union NeverDestroyed {
    explicit NeverDestroyed(T given) : value(std::move(given)) {}
    ~NeverDestroyed() {}  // NOLINT(modernize-use-equals-default): that would be deleted if T has a destructor
    T value;
  };
  static std::mutex mutex;
  // A pointer, so that the list and its values are not destroyed at exit either, because a GPU may use them until
  // then.
  static std::deque<T>* kept = nullptr;
  const bool noted = runs_through([&] {
    const std::scoped_lock lock(mutex);
    if (kept == nullptr) kept = new std::deque<T>;  // NOLINT(bugprone-unhandled-exception-at-new): it is caught
    kept->push_back(std::move(what));               // if this throws, `what` is unchanged
  });
  if (!noted) [[maybe_unused]]
    const NeverDestroyed left(std::move(what));
}

}  // namespace tutti::detail
