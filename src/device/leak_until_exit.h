// leak_until_exit(): intentionally leaks an object that a GPU may still use, because freeing its memory could
// corrupt memory or block. May be called by any thread.
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
    ~NeverDestroyed() {}
    T value;
  };
  static std::mutex mutex;
  // Not destroyed at exit, because a GPU may use the values until then.
  static std::deque<T>* kept = nullptr;
  const bool noted = runs_through([&] {
    const std::scoped_lock lock(mutex);
    if (kept == nullptr) kept = new std::deque<T>;
    kept->push_back(std::move(what));  // if this throws, `what` is unchanged
  });
  if (!noted) [[maybe_unused]]
    const NeverDestroyed left(std::move(what));
}

}  // namespace tutti::detail
