// Passes that are made again, and a function of autograd for both passes, without Python: what `native` compiles.
//
// A pass is a list of commands for the driver over one block of words (`direct`), memory that it makes, and views that
// it returns (`lengths`). A backward pass that is not prepared, or whose tensors are others than were prepared for, is
// made by Python, which is right for all of them.

#include "native_python.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <atomic>

using torch::autograd::AutogradContext, torch::autograd::ForwardADLevel;

static std::atomic<bool> on{true};

struct Prepared {  // a backward pass that follows a forward pass
  std::shared_ptr<Pass> pass;
  Numbers strides;  // of the gradient of O
  Numbers lying;  // how what is saved lies in memory, since hooks may bring it back in another way
  std::vector<Numbers> sizes;  // of the inputs that may have gradients, of which there may be a fourth
  bool taught;  // whether the pass gives the gradient of the fourth
  PyObject *later, *known;  // gradients by Python, and a weak reference to what is known of the call

  Prepared(std::shared_ptr<Pass> pass, at::IntArrayRef strides, const variable_list& saved, const variable_list& inputs, bool taught, PyObject* later, PyObject* known)
      : pass(std::move(pass)), strides(strides.vec()), taught(taught), later(later), known(PyWeakref_NewRef(known, nullptr)) {
    if (!this->known) throw python_error();
    Py_INCREF(later);
    for (size_t at = 0; at < 4 && inputs[at].defined(); ++at) sizes.push_back(inputs[at].sizes().vec());
    lie(saved, [&](Number each, bool size) { lying.push_back(each); });
  }
  Prepared(const Prepared&) = delete;
  ~Prepared() { let_go(later), let_go(known); }

  // Whether a gradient of O lies as it was expected to.
  bool lies(const Tensor& grad) const {
    bool same = grad.dim() == Number(strides.size());
    for (Number at = 0; same && at < grad.dim(); ++at) same = grad.size(at) == 1 || grad.stride(at) == strides[at];
    return same;
  }

  // Whether tensors have the sizes that were saved, or lie as what was saved in all.
  bool as_it_was(const variable_list& saved, bool sizes_alone = false) const {
    size_t at = 0;
    bool same = true;
    lie(saved, [&](Number each, bool size) {
      same = same && at < lying.size() && (lying[at] == each || (sizes_alone && !size));
      ++at;
    });
    return same && at == lying.size();
  }

 private:
  template <class F>
  static void lie(const variable_list& saved, F f) {
    for (auto& x : saved) {
      f(x.defined() ? x.dim() : -1, true);
      if (!x.defined()) continue;
      f(static_cast<Number>(x.scalar_type()), false), f(x.device().is_cpu() ? -1 : x.device().index(), false);
      for (auto each : x.sizes()) f(each, true);
      for (auto each : x.strides()) f(each, false);
    }
  }
};

// ---- the function of autograd

// Whether something traces or transforms what is done with tensors.
static bool watched() {
  auto usual = c10::default_included_set | c10::autocast_dispatch_keyset;
  return !(c10::impl::tls_local_dispatch_key_set().included_ - usual).empty();
}

static at::Stream stream_of(const Tensor& x) { return c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()); }

// A tensor with other axes of batches.
static Tensor shaped(const Tensor& x, at::IntArrayRef sizes) {
  if (x.sizes() == sizes) return x;
  if (at::GradMode::is_enabled()) return x.reshape(sizes);
  at::AutoDispatchBelowADInplaceOrView below;
  return x.reshape(sizes);
}

struct State : torch::CustomClassHolder {  // what the backward pass of one call needs
  std::shared_ptr<Prepared> prepared;
  Number stream, its_number;
};

struct Attention : torch::autograd::Function<Attention> {
  struct Given {
    std::shared_ptr<Prepared> prepared;
    variable_list outputs, saved;
    Number stream;
  };

  static variable_list forward(
      AutogradContext* ctx, Tensor query, Tensor key, Tensor value, std::optional<Tensor> fourth, Given* given) {
    ctx->save_for_backward(given->saved);
    auto state = c10::make_intrusive<State>();
    state->prepared = given->prepared, state->stream = given->stream;
    state->its_number = stream_of(query).id();
    ctx->saved_data["state"] = c10::IValue::make_capsule(std::move(state));
    ctx->set_materialize_grads(false);
    return given->outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto held = ctx->saved_data["state"].toCapsule();
    auto& state = static_cast<State&>(*held);
    auto& prepared = *state.prepared;
    std::vector<bool> needed;
    for (int at = 0; at < 4; ++at) needed.push_back(at < int(prepared.sizes.size()) && ctx->needs_input_grad(at));
    variable_list made, saved = ctx->get_saved_variables();
    bool any = grads[0].defined() || (grads.size() > 1 && grads[1].defined());
    if (any && !(ready(state, grads, saved, needed) && alone(state, grads[0], saved, made)))
      made = by_python(prepared, grads, saved, needed);
    made.resize(5);
    for (int at = 0; at < 4; ++at)
      made[at] = needed[at] && made[at].defined() ? shaped(made[at], prepared.sizes[at]) : Tensor();
    return made;
  }

  // Whether these are the tensors that a pass was prepared for, and nothing traces or transforms what is done with them.
  static bool ready(const State& state, const variable_list& grads, const variable_list& saved, const std::vector<bool>& needed) {
    if (!on || at::GradMode::is_enabled() || watched()) return false;
    auto& prepared = *state.prepared;
    auto& grad = grads[0];
    if (!grad.defined() || (grads.size() > 1 && grads[1].defined()) || (needed[3] && !prepared.taught)) return false;
    if (!(needed[0] || needed[1] || needed[2])) return false;
    auto& like = saved[0];
    if (grad.key_set() != like.key_set() || grad.dtype() != like.dtype() || grad.device() != like.device()) return false;
    if (!prepared.as_it_was(saved)) return false;
    if (!prepared.lies(grad) || grad._fw_grad(0).defined()) return false;
    c10::impl::VirtualGuardImpl guard(grad.device().type());
    return guard.getDevice() == grad.device() && stream_of(grad).id() == state.its_number;
  }

  static bool alone(const State& state, const Tensor& grad, const variable_list& saved, variable_list& made) {
    variable_list inputs{grad, Tensor()};
    inputs.insert(inputs.end(), saved.begin(), saved.end());
    try {
      return make(*state.prepared->pass, std::move(inputs), state.stream, made);
    } catch (const c10::OutOfMemoryError&) {  // other kernels may need less
      return false;
    }
  }

  static variable_list by_python(const Prepared& prepared, const variable_list& grads, const variable_list& saved, const std::vector<bool>& needed);
};

// ---- Python

variable_list Attention::by_python(const Prepared& prepared, const variable_list& grads, const variable_list& saved, const std::vector<bool>& needed) {
  pybind11::gil_scoped_acquire acquired;
  try {
    Object one(tuple_of(grads)), two(tuple_of(saved)), three(PyTuple_New(4));
    for (int at = 0; at < 4; ++at) PyTuple_SET_ITEM(three.is, at, PyBool_FromLong(needed[at]));
    PyObject* as_it_was = prepared.as_it_was(saved) ? Py_True : prepared.as_it_was(saved, true) ? Py_False : Py_None;
    Object made(PyObject_CallFunctionObjArgs(prepared.later, prepared.known, as_it_was, one.is, two.is, three.is, nullptr));
    return tensors_of(made.is);
  } catch (python_error& error) {
    error.persist();
    throw;
  }
}

// kind(driver, commands, streams, inputs, types, alike, slots, like, kept)
static PyObject* kind(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  std::shared_ptr<Kind> made(new Kind, [](Kind* x) { let_go(x->kept); delete x; });
  Py_INCREF(made->kept = given[8]);
  auto by = numbers(given[0]);
  std::memcpy(&made->by, by.data(), sizeof(Driver));
  made->commands = each_of(given[1], [](PyObject* x) {
    return Command{PyUnicode_AsUTF8(item(x, 0))[0], number(item(x, 1)), number(item(x, 2)), numbers(item(x, 3))};
  });
  made->streams = numbers(given[2]);
  made->inputs = numbers(given[3]);
  for (auto& each : tensors_of(given[4])) made->types.push_back(static_cast<int64_t>(each.scalar_type()));
  made->alike = threes(given[5]);
  made->slots = number(given[6]);
  made->device = THPVariable_Unpack(given[7]).device();
  return held(made);
  END_HANDLE_TH_ERRORS
}

// boxes(driver, type, swizzle, nan, sides): descriptors of a kind
static PyObject* boxes(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto made = std::make_shared<Boxes>();
  auto by = numbers(given[0]);
  std::memcpy(&made->by, by.data(), sizeof(Driver));
  made->type = number(given[1]), made->swizzle = number(given[2]), made->nan = number(given[3]);
  for (auto each : numbers(given[4])) made->sides.push_back(each);
  return held(made);
  END_HANDLE_TH_ERRORS
}

// family(kind, axes, boxes, script, form): of what `Script.registers` gives
static PyObject* family(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto made = std::make_shared<Family>();
  made->kind = in<Kind>(given[0]);
  made->axes = each_of(given[1], numbers);
  made->boxes = each_of(given[2], in<Boxes>);
  PyObject *script = given[3], *all = given[4], *commands = item(all, 0), *rooms = item(all, 2);
  made->script.sizes = number(item(script, 0));
  made->script.lines = each_of(item(script, 1), [](PyObject* x) {
    return Line{PyUnicode_AsUTF8(item(x, 0))[0], size_t(number(item(x, 1))), size_t(number(item(x, 2))), number(item(x, 3)) != 0};
  });
  made->script.constants = numbers(item(script, 2));
  Form& form = made->form;
  form.words = numbers(item(commands, 0)), form.places = threes(item(commands, 1)), form.fills = threes(item(commands, 3));
  form.boxes = each_of(item(commands, 2), [](PyObject* x) {
    auto found = numbers(item(x, 0)), strides = numbers(item(x, 1));
    found.insert(found.end(), strides.begin(), strides.end());
    return found;
  });
  form.memory = each_of(item(all, 1), [](PyObject* x) {
    return Memory{number(item(x, 0)), numbers(item(x, 1)), numbers(item(x, 2))};
  });
  form.rooms = numbers(item(rooms, 0)), form.begins = threes(item(rooms, 1));
  for (int of : {3, 4})  // results, and whether promises hold
    for (auto& each : each_of(item(all, of), view)) form.views.push_back(each);
  made->close();
  return held(made);
  END_HANDLE_TH_ERRORS
}

// found(families, inputs): the number of the first family that decides so, and its pass; None if there is none, and
// False if Python is to say
static PyObject* found(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  std::shared_ptr<Pass> pass;
  size_t which;
  auto outcome = find(each_of(given[0], in<Family>), each_laid(tensors_of(given[1])), pass, which);
  if (outcome == Outcome::beyond) Py_RETURN_FALSE;
  if (outcome == Outcome::other) Py_RETURN_NONE;
  return Py_BuildValue("(nN)", static_cast<Py_ssize_t>(which), held(pass));
  END_HANDLE_TH_ERRORS
}

// told(pass): its values in the places of the form that `family` was given, with the words as bytes
static PyObject* told(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto pass = in<Pass>(given[0]);
  Form form = pass->family->form;
  form.each([&](Number& each) { each = pass->values[each]; });
  std::string words = pass->maps;
  words.append(reinterpret_cast<const char*>(form.words.data()), form.words.size() * word_bytes);
  pybind11::list memory, views;
  for (auto& each : form.memory) memory.append(pybind11::make_tuple(each.slot, each.sizes, each.strides));
  for (auto& each : form.views) {
    pybind11::object sizes = each.whole ? pybind11::object(pybind11::none()) : pybind11::cast(each.sizes);
    views.append(each.there ? pybind11::object(pybind11::make_tuple(each.slot, each.offset, sizes, each.strides)) : pybind11::none());
  }
  return pybind11::make_tuple(pybind11::bytes(words), form.places, form.fills, memory, form.rooms, form.begins, views).release().ptr();
  END_HANDLE_TH_ERRORS
}

// Make a pass; false where another way is to be taken. Whether promises hold is what is returned behind the results.
static bool made(const Pass& pass, const variable_list& inputs, Number stream, variable_list& results) {
  {
    pybind11::gil_scoped_release released;
    try {
      if (!make(pass, inputs, stream, results)) return false;
    } catch (const c10::OutOfMemoryError&) {  // other kernels may need less
      return false;
    }
  }
  PyObject *sentences = item(pass.family->kind->kept, 1), *promise = item(pass.family->kind->kept, 2);
  size_t first = results.size() - PyTuple_GET_SIZE(sentences);
  for (size_t at = first; at < results.size(); ++at) {
    Object holds(THPVariable_Wrap(results[at]));
    Object none(PyObject_CallFunctionObjArgs(promise, holds.is, item(sentences, at - first), nullptr));
  }
  results.resize(first);
  return true;
}

// run(pass, inputs, stream): results, or None where another way is to be taken
static PyObject* run(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  variable_list results;
  if (made(*in<Pass>(given[0]), tensors_of(given[1]), number(given[2]), results)) return tuple_of(results);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// prepared(pass, like, saved, inputs, taught, later, known); like: a tensor that lies as the gradient of O
static PyObject* prepared(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  return held(std::make_shared<Prepared>(
      in<Pass>(given[0]), THPVariable_Unpack(given[1]).strides(), tensors_of(given[2]), tensors_of(given[3]), given[4] == Py_True, given[5], given[6]));
  END_HANDLE_TH_ERRORS
}

static variable_list attach(std::shared_ptr<Prepared> prepared, const variable_list& x, variable_list outputs, variable_list saved, Number stream) {
  Attention::Given rest{std::move(prepared), std::move(outputs), std::move(saved), stream};
  return Attention::apply(x[0], x[1], x[2], x[3].defined() ? std::optional<Tensor>(x[3]) : std::nullopt, &rest);
}

// attached(prepared, inputs, outputs, saved, stream): the outputs, with gradients
static PyObject* attached(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  return tuple_of(attach(in<Prepared>(given[0]), tensors_of(given[1]), tensors_of(given[2]), tensors_of(given[3]), number(given[4])));
  END_HANDLE_TH_ERRORS
}

// laid(*tensors): the sizes, strides and types of the tensors of a plain call, and which are None, as bytes; None if it
// may be another one. As `eager.plain` asks, for tensors of the current device.
static PyObject* laid(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  using at::DispatchKey;
  static const auto plain = c10::DispatchKeySet({DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::ADInplaceOrView,
      DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA}) | c10::autocast_dispatch_keyset;
  if (watched() || at::autocast::is_autocast_enabled(at::kCUDA) || ForwardADLevel::try_get_by_idx(0)) Py_RETURN_NONE;
  c10::SmallVector<Number, 64> found;
  at::Device device = THPVariable_Check(given[0]) ? THPVariable_Unpack(given[0]).device() : at::Device(at::kMeta);
  if (!(device.is_cuda() || device.is_cpu()) || c10::impl::VirtualGuardImpl(device.type()).getDevice() != device) Py_RETURN_NONE;
  found.push_back(device.index());
  for (Py_ssize_t at = 0; at < count; ++at) {
    if (given[at] == Py_None) { found.push_back(-1); continue; }
    if (!THPVariable_CheckExact(given[at])) Py_RETURN_NONE;
    auto& x = THPVariable_Unpack(given[at]);
    if ((x.key_set().raw_repr() & ~plain.raw_repr()) || x.device() != device) Py_RETURN_NONE;
    found.push_back(x.dim()), found.push_back(static_cast<Number>(x.scalar_type()));
    found.append(x.sizes().begin(), x.sizes().end()), found.append(x.strides().begin(), x.strides().end());
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(found.data()), found.size() * word_bytes);
  END_HANDLE_TH_ERRORS
}

// ---- whole calls, of which the first result of the forward pass alone is wanted

struct Calls {  // that are alike but for lengths and strides
  std::vector<std::shared_ptr<Family>> forward, backward;
  Numbers saved, taken;  // what is saved, and what the backward pass takes of it: inputs, results behind them, or -1
  Numbers order;  // axes of the gradient of O in memory; none if it lies as O does
  bool taught;
  PyObject* later;  // None if no gradient is wanted

  Calls() : later(nullptr) {}
  Calls(const Calls&) = delete;
  ~Calls() { if (later) let_go(later); }
};

struct Call {  // of known sizes; without a backward pass if no gradient is wanted
  std::shared_ptr<Calls> of;
  std::shared_ptr<Pass> forward;
  std::shared_ptr<Prepared> prepared;
  Numbers sizes;  // of O; none if they are those that the forward pass gives
};

// Inputs and results at some places.
template <class T>
static std::vector<T> at_places(const Numbers& places, const std::vector<T>& inputs, const std::vector<T>& results, const T& nothing) {
  std::vector<T> found;
  for (auto at : places)
    found.push_back(at < 0 ? nothing : at < Number(inputs.size()) ? inputs[at] : results[at - inputs.size()]);
  return found;
}

// O of a call, with gradients if it has a backward pass.
static PyObject* out_of(const Call& call, const variable_list& inputs, variable_list& results, Number stream) {
  if (!call.sizes.empty()) results[0] = shaped(results[0], call.sizes);
  if (!call.prepared) return THPVariable_Wrap(results[0]);
  auto saved = at_places(call.of->saved, inputs, results, Tensor());
  return THPVariable_Wrap(attach(call.prepared, inputs, {results[0]}, std::move(saved), stream)[0]);
}

// The backward pass that follows a forward pass; nothing if there is none.
static std::shared_ptr<Pass> following(const Calls& of, const Pass& forward, const variable_list& inputs, Few& strides) {
  std::vector<Laid> results, taken{forward.result(0), Laid{{}, {}, false}};
  for (size_t at = 0; at < forward.family->form.views.size(); ++at) results.push_back(forward.result(at));
  Number words = 1;
  for (size_t at = of.order.size(); at-- > 0; words *= taken[0].sizes[of.order[at]]) taken[0].strides[of.order[at]] = words;
  strides = taken[0].strides;
  for (auto& each : at_places(of.taken, each_laid(inputs), results, Laid{{}, {}, false})) taken.push_back(each);
  std::shared_ptr<Pass> pass;
  size_t which;
  return find(of.backward, taken, pass, which) == Outcome::found ? pass : nullptr;
}

// calls(forward families, backward families, saved, taken, order, taught, later)
static PyObject* calls(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto made = std::make_shared<Calls>();
  made->forward = each_of(given[0], in<Family>), made->backward = each_of(given[1], in<Family>);
  made->saved = numbers(given[2]), made->taken = numbers(given[3]), made->order = numbers(given[4]);
  made->taught = given[5] == Py_True;
  Py_INCREF(made->later = given[6]);
  return held(made);
  END_HANDLE_TH_ERRORS
}

// call(calls, forward pass, prepared or None, sizes of O): a call of known sizes
static PyObject* call(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  return held(std::make_shared<Call>(Call{
      in<Calls>(given[0]), in<Pass>(given[1]), given[2] == Py_None ? nullptr : in<Prepared>(given[2]), numbers(given[3])}));
  END_HANDLE_TH_ERRORS
}

// first(calls, inputs, stream, known): O of new sizes, and the call for others of these; or None
static PyObject* first(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto call = std::make_shared<Call>(Call{in<Calls>(given[0])});
  auto inputs = tensors_of(given[1]);
  auto stream = number(given[2]);
  variable_list results;
  size_t which;
  if (find(call->of->forward, each_laid(inputs), call->forward, which) != Outcome::found) Py_RETURN_NONE;
  Few strides;
  bool wanted = call->of->later != Py_None;
  auto pass = wanted ? following(*call->of, *call->forward, inputs, strides) : nullptr;
  if ((wanted && !pass) || !made(*call->forward, inputs, stream, results)) Py_RETURN_NONE;
  if (wanted) {
    auto saved = at_places(call->of->saved, inputs, results, Tensor());
    call->prepared = std::make_shared<Prepared>(
        pass, strides, saved, inputs, call->of->taught, call->of->later, given[3]);
  }
  Object out(out_of(*call, inputs, results, stream));
  return Py_BuildValue("(ON)", out.is, held(call));
  END_HANDLE_TH_ERRORS
}

// again(call, inputs, stream): O of sizes that are known; or None
static PyObject* again(PyObject*, PyObject* const* given, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto call = in<Call>(given[0]);
  auto inputs = tensors_of(given[1]);
  auto stream = number(given[2]);
  variable_list results;
  if (!made(*call->forward, inputs, stream, results)) Py_RETURN_NONE;
  return out_of(*call, inputs, results, stream);
  END_HANDLE_TH_ERRORS
}

static PyObject* turn(PyObject*, PyObject* x) {
  on = x == Py_True;
  Py_RETURN_NONE;
}

#define METHOD(name) {#name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(name)), METH_FASTCALL, nullptr}
static PyMethodDef methods[] = {
    METHOD(kind), METHOD(boxes), METHOD(family), METHOD(found), METHOD(told), METHOD(run), METHOD(prepared), METHOD(attached),
    METHOD(calls), METHOD(call), METHOD(first), METHOD(again), METHOD(laid), {"turn", turn, METH_O, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "pebblesim_native", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_pebblesim_native() { return PyModule_Create(&module); }
