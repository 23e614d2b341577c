// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Errors of a driver that are not in its answer (DriverError).
var (
	// ErrUnreachable is wrapped when no program listens at the driver's address.
	ErrUnreachable = errors.New("driver cannot be reached")
	// ErrLost is wrapped when the driver ended the connection instead of answering, for
	// example because the call crashed it. It may have carried out the call.
	ErrLost = errors.New("driver ended the connection without an answer")
	// ErrNotImplemented is wrapped when the driver does not know a method (404).
	ErrNotImplemented = errors.New("driver does not implement it")
	// ErrBadAnswer is wrapped when the answer breaks the protocol.
	ErrBadAnswer = errors.New("bad answer of the driver")
	// ErrNoDriver is wrapped when no driver of a name is found.
	ErrNoDriver = errors.New("plugin not found")
	// ErrTimeout is wrapped when the driver did not answer in time.
	ErrTimeout = errors.New("no answer in time")
)

// DriverError is an error that a driver answered.
type DriverError struct {
	Method string // "NetworkDriver.Join"
	Text   string
	Status int // HTTP status; 200 for an error in a regular answer
}

// Error is Docker's text.
func (e *DriverError) Error() string {
	if e.Status == http.StatusOK {
		return fmt.Sprintf("%s: %s", e.Method, e.Text)
	}
	return fmt.Sprintf("%s: HTTP status %d: %s", e.Method, e.Status, e.Text)
}

// Is says that a 404 is ErrNotImplemented.
func (e *DriverError) Is(target error) bool {
	return target == ErrNotImplemented && e.Status == http.StatusNotFound
}

// IsMissing says whether a driver answered that it does not know a network, an endpoint
// or a pool. The protocol has no codes, only a text that each driver words differently;
// so a wrong result must cost no more than one call.
func IsMissing(err error) bool {
	return says(err, "not found", "unknown", "no such", "not exist", "n't exist", "not known", "no network", "invalid network", "invalid pool", "missing network") ||
		errors.Is(err, ErrNotImplemented)
}

// SaysExists says whether a driver answered that something exists already.
func SaysExists(err error) bool {
	return says(err, "exist", "already", "duplicate", "in use", "conflict") && !IsMissing(err)
}

func says(err error, words ...string) bool {
	var d *DriverError
	if !errors.As(err, &d) {
		return false
	}
	text := strings.ToLower(d.Text)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}
