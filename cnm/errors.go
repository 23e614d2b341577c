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

// The ways in which a call can fail without an error in the driver's answer (DriverError).
var (
	// ErrUnreachable means that no program listens at the driver's address.
	ErrUnreachable = errors.New("driver cannot be reached")
	// ErrLost means that the driver closed the connection instead of answering, for example
	// because the call made it crash. The driver may have carried out the call.
	ErrLost = errors.New("driver ended the connection without an answer")
	// ErrNotImplemented means that the driver does not know a method (404).
	ErrNotImplemented = errors.New("driver does not implement it")
	// ErrBadAnswer means that the answer violates the protocol.
	ErrBadAnswer = errors.New("bad answer of the driver")
	// ErrNoDriver means that there is no driver of this name.
	ErrNoDriver = errors.New("plugin not found")
	// ErrTimeout means that the driver did not answer in time.
	ErrTimeout = errors.New("no answer in time")
)

// DriverError is an error that a driver has answered.
type DriverError struct {
	Method string // "NetworkDriver.Join"
	Text   string
	Status int // HTTP status; 200 for an error in a regular answer
}

// Error returns the text that Docker prints.
func (e *DriverError) Error() string {
	if e.Status == http.StatusOK {
		return fmt.Sprintf("%s: %s", e.Method, e.Text)
	}
	return fmt.Sprintf("%s: HTTP status %d: %s", e.Method, e.Status, e.Text)
}

// Is reports that a 404 is ErrNotImplemented.
func (e *DriverError) Is(target error) bool {
	return target == ErrNotImplemented && e.Status == http.StatusNotFound
}

// IsMissing reports whether a driver answered that it does not know a network, an endpoint or a
// pool. The protocol has no error codes, and each driver uses other words. So the result may be
// wrong, and then must cost no more than one call.
func IsMissing(err error) bool {
	return says(err, "not found", "unknown", "no such", "not exist", "n't exist", "not known", "no network", "invalid network", "invalid pool", "missing network") ||
		errors.Is(err, ErrNotImplemented)
}

// SaysExists reports whether a driver answered that something exists already.
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
