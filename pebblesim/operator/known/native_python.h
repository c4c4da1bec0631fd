// Objects of Python, as tensors and numbers.

#pragma once

#include "native_passes.h"

#include <torch/csrc/autograd/python_variable.h>

inline void let_go(PyObject* x) {
  if (!Py_IsInitialized()) return;
  pybind11::gil_scoped_acquire acquired;
  Py_DECREF(x);
}

struct Object {  // a reference that is given back
  PyObject* is;
  explicit Object(PyObject* is) : is(is) { if (!is) throw python_error(); }
  Object(const Object&) = delete;
  ~Object() { Py_DECREF(is); }
};

inline PyObject* tuple_of(const variable_list& tensors) {
  PyObject* made = PyTuple_New(tensors.size());
  for (size_t at = 0; at < tensors.size(); ++at) PyTuple_SET_ITEM(made, at, THPVariable_Wrap(tensors[at]));
  return made;
}

inline variable_list tensors_of(PyObject* several) {
  variable_list found;
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(several); ++at) {
    PyObject* each = PyTuple_GET_ITEM(several, at);
    found.push_back(each == Py_None ? Tensor() : THPVariable_Unpack(each));
  }
  return found;
}

inline Number number(PyObject* x) {
  Number found = PyLong_AsLongLong(x);
  if (found == -1 && PyErr_Occurred()) throw python_error();
  return found;
}

inline PyObject* item(PyObject* several, Py_ssize_t at) {
  TORCH_CHECK(PyTuple_Check(several) && at < PyTuple_GET_SIZE(several), "a tuple is not as it should be");
  return PyTuple_GET_ITEM(several, at);
}

template <class F>
inline auto each_of(PyObject* several, F f) {
  std::vector<decltype(f(several))> found;
  TORCH_CHECK(PyTuple_Check(several), "a tuple is expected");
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(several); ++at) found.push_back(f(PyTuple_GET_ITEM(several, at)));
  return found;
}

inline Numbers numbers(PyObject* x) { return each_of(x, number); }

inline std::vector<Three> threes(PyObject* several) {
  return each_of(several, [](PyObject* x) { return Three{number(item(x, 0)), number(item(x, 1)), number(item(x, 2))}; });
}

inline View view(PyObject* x) {
  if (x == Py_None) return View{0, 0, false, true, {}, {}};
  bool whole = item(x, 2) == Py_None;
  return View{number(item(x, 0)), number(item(x, 1)), true, whole, whole ? Numbers() : numbers(item(x, 2)), numbers(item(x, 3))};
}

inline std::vector<Laid> each_laid(const variable_list& tensors) {
  std::vector<Laid> found;
  for (auto& each : tensors) found.push_back(Laid::of(each));
  return found;
}

template <class T>
inline PyObject* held(std::shared_ptr<T> x) {
  return PyCapsule_New(new std::shared_ptr<T>(std::move(x)), nullptr, [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, nullptr));
  });
}

template <class T>
inline std::shared_ptr<T> in(PyObject* capsule) {
  return *static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule, nullptr));
}
