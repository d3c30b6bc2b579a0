// leak_until_exit(): intentionally leaks an object that a GPU may still use, because freeing its memory could
// corrupt memory or block. May be called by any thread.
#pragma once

#include <deque>
#include <mutex>
#include <utility>

#include "base/exceptions.h"

namespace tutti::detail {

// Holds a value that is never destroyed.
template <class T>
union NeverDestroyed {
  explicit NeverDestroyed(T given) : value(std::move(given)) {}
  ~NeverDestroyed() {}
  T value;
};

template <class T>
void leak_until_exit(T what) noexcept {
  static std::mutex mutex;
  static NeverDestroyed<std::deque<T>*> kept(nullptr);
  const bool noted = runs_through([&] {
    const std::scoped_lock lock(mutex);
    // Not destroyed at exit, because a GPU may use the values until then.
    if (kept.value == nullptr) kept.value = new std::deque<T>;
    kept.value->push_back(std::move(what));  // if this throws, `what` is unchanged
  });
  if (!noted) [[maybe_unused]]
    const NeverDestroyed<T> left(std::move(what));
}

}  // namespace tutti::detail
