// What is never ended, since a GPU may still use it. Any thread.
#pragma once

#include <deque>
#include <mutex>
#include <utility>

#include "base/exceptions.h"

namespace tutti::detail {

// A value whose destructor never runs.
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
    if (kept.value == nullptr) kept.value = new std::deque<T>;  // not destroyed at exit
    kept.value->push_back(std::move(what));                     // `what` is as it was if this fails
  });
  if (!noted) [[maybe_unused]]
    const NeverDestroyed<T> left(std::move(what));
}

}  // namespace tutti::detail
