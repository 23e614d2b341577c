// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Code is an error code of the specification (SPEC.md, "Error"). Plugins define the codes from
// 100 on. A Code is an error itself, so that errors.Is finds it, also in the error of a plugin that
// was another program:
//
//	if errors.Is(err, spec.CodeTryAgain) {
//
// An error without a code matches no Code. Joined errors match the code of each of them.
type Code uint

// Error names the code.
func (c Code) Error() string { return fmt.Sprintf("CNI error code %d", uint(c)) }

// These are the codes of the specification and two codes of its Go library.
const (
	CodeUnknown             Code = 0
	CodeIncompatibleVersion Code = 1
	CodeUnsupportedField    Code = 2
	CodeUnknownContainer    Code = 3
	CodeInvalidEnvironment  Code = 4
	CodeIO                  Code = 5
	CodeDecoding            Code = 6
	CodeInvalidConfig       Code = 7
	CodeInvalidNetNS        Code = 8 // libcni has it; the specification's table does not
	CodeTryAgain            Code = 11
	CodeNotAvailable        Code = 50
	CodeLimited             Code = 51 // not available, and existing containers have limited connectivity
	CodeInternal            Code = 999
)

// Error is the error object that a plugin prints. Error wraps the original Go error, so
// errors.Is works within the process.
type Error struct {
	CNIVersion string `json:"cniVersion,omitempty"`
	Code       Code   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`

	cause error
}

// Error returns "msg; details", as libcni does.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Unwrap returns the error that Errorf wrapped with %w, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is the Code of e.
func (e *Error) Is(target error) bool { return target == e.Code }

// Errorf returns an Error with a code. The format may use %w.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// Invalid returns the error with which a plugin refuses a configuration.
func Invalid(format string, args ...any) *Error { return Errorf(CodeInvalidConfig, format, args...) }

// WithDetails returns e with details, which say what failed, on which object, and what to do.
func (e *Error) WithDetails(format string, args ...any) *Error {
	c := *e
	c.Details = fmt.Sprintf(format, args...)
	return &c
}

// AsError returns the error object for any error. If err wraps an Error, the object has that
// Error's code and details. Its message is the whole text of err, so no context is lost. If err
// wraps no Error, the object has CodeInternal.
func AsError(err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Code: CodeInternal, Msg: err.Error(), cause: err}
	}
	if err == error(e) { //nolint:errorlint // identity: an Error that nothing wraps
		return e
	}
	out := &Error{CNIVersion: e.CNIVersion, Code: e.Code, Msg: err.Error(), cause: err}
	return out
}

// Join works like errors.Join, but returns a single error unchanged, so it keeps its code and
// details.
func Join(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// ErrorCode returns the code of err. ErrorCode returns 0 for nil, and CodeInternal for an
// error without a code.
func ErrorCode(err error) Code {
	if err == nil {
		return 0
	}
	return AsError(err).Code
}

// ParseError reads an error object from the standard output of a plugin. If data is not an error
// object, ok is false.
func ParseError(data []byte) (e *Error, ok bool) {
	e = new(Error)
	if err := json.Unmarshal(data, e); err != nil || (e.Code == 0 && e.Msg == "") {
		return nil, false
	}
	return e, true
}
