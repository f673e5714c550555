/* A compiled type with a method that takes nothing and does nothing: the least that a call from Python into
 * compiled code can cost. The other method does nothing either, but may be given arguments by position or name. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *method(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    Py_RETURN_NONE;
}

static PyObject *method_with_arguments(PyObject *self, PyObject *const *values, Py_ssize_t count, PyObject *names)
{
    (void)self;
    (void)values;
    (void)count;
    (void)names;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"method", method, METH_NOARGS, NULL},
    {"method_with_arguments", (PyCFunction)(void (*)(void))method_with_arguments, METH_FASTCALL | METH_KEYWORDS,
     NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "empty.Empty",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = methods,
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "empty", .m_size = -1};

PyMODINIT_FUNC PyInit_empty(void)
{
    if (PyType_Ready(&type) < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddObjectRef(module, "Empty", (PyObject *)&type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
