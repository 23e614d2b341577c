// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnm implements the protocol between dockerd and drivers that run outside dockerd
// (libnetwork's "remote" drivers, legacy v1 plugins). There are network drivers and IPAM drivers.
// The package has the messages, a server for drivers, a client for programs that call a driver,
// and a search for drivers by name.
//
//	type driver struct{ … }                                  // a NetworkDriver
//	cnm.Serve(ctx, listener, &cnm.Handler{Network: driver{}})
//
//	at, err := cnm.DefaultDirs().Find("weave")
//	c, err := cnm.NewClient(at, cnm.ClientOptions{})
//	answer, err := c.Join(ctx, &cnm.JoinRequest{…})          // *Client is a NetworkDriver too
//
// What this package knows of the protocol comes from moby 20.10 to 29
// (daemon/libnetwork/drivers/remote/api, daemon/libnetwork/ipams/remote/api, pkg/plugins). The
// same structs serve all these versions. An address in a message has a prefix length unless its
// field says otherwise. An unknown address is the empty string in a message, and the zero value
// in Go.
package cnm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Call calls a method, such as "NetworkDriver.Join". It sends in as the request, or an empty body
// if in is nil. It decodes the answer into out, or ignores the answer if out is nil. The error
// wraps ErrUnreachable, ErrTimeout, ErrLost or ErrBadAnswer, or is a *DriverError. The call ends
// early when ctx ends.
func (c *Client) Call(ctx context.Context, method string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("%s: encode request: %w", method, err)
		}
	}
	resp, err := c.reach(ctx, method, body)
	if err != nil {
		return fmt.Errorf("driver %s: %s: %w", c.at, method, err)
	}
	if err := resp.decode(method, out); err != nil {
		return fmt.Errorf("driver %s: %w", c.at, err)
	}
	return nil
}

// reach tries to send the request until a driver listens or the client's patience is over.
func (c *Client) reach(ctx context.Context, method string, body []byte) (*answer, error) {
	end := time.Now().Add(c.opts.Patience)
	for pause := firstPause; ; pause *= 2 {
		a, err := c.post(ctx, method, body)
		switch {
		case !unreachable(err):
			return a, err
		case time.Now().Add(pause).After(end):
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// answer is the HTTP response of the driver.
type answer struct {
	status int
	body   []byte
}

// post tries once to send the request.
func (c *Client) post(ctx context.Context, method string, body []byte) (*answer, error) {
	limit, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(limit, http.MethodPost, c.base+"/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", ContentType)
	if c.opts.Depth > 0 {
		req.Header.Set(depthHeader, strconv.Itoa(c.opts.Depth))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, broken(ctx, limit, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody+1))
	switch {
	case err != nil:
		return nil, broken(ctx, limit, err)
	case len(data) > MaxBody:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrBadAnswer, MaxBody)
	}
	return &answer{resp.StatusCode, data}, nil
}

// broken returns why there is no answer. It distinguishes our own time limit from the caller's.
func broken(ctx, limit context.Context, err error) error {
	switch {
	case ctx.Err() != nil || unreachable(err):
		return err
	case limit.Err() != nil:
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// maxText is how many characters of a driver's error are kept.
const maxText = 2000

// decode reads the error, and then the answer. Drivers use two names for the field of the error.
// An empty body counts as an answer without values.
func (a *answer) decode(method string, out any) error {
	data := bytes.TrimSpace(a.body)
	var e errorBody
	err := error(nil)
	if len(data) > 0 {
		err = json.Unmarshal(data, &e)
	}
	text := fmt.Sprintf("%.*s", maxText, cmp.Or(e.Err, e.Error))
	switch {
	case a.status != http.StatusOK:
		if text == "" {
			text = strings.TrimSpace(fmt.Sprintf("%.400s", data))
		}
		return &DriverError{method, text, a.status}
	case err != nil:
		return fmt.Errorf("%s: %w: %w: %.200q", method, ErrBadAnswer, err, data)
	case text != "":
		return &DriverError{method, text, a.status}
	case out == nil || len(data) == 0:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s: %w: %w: %.200q", method, ErrBadAnswer, err, data)
	}
	return nil
}

// query calls a method and returns the answer in a new value.
func query[Out any](ctx context.Context, c *Client, method string, in any) (*Out, error) {
	out := new(Out)
	if err := c.Call(ctx, method, in, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Activate asks which interfaces the plugin implements. Docker's managed plugins do not have this
// method; for them the error is ErrNotImplemented.
func (c *Client) Activate(ctx context.Context) (*Manifest, error) {
	return query[Manifest](ctx, c, "Plugin.Activate", nil)
}

// Unanswered reports whether an error means that the driver did not answer. Then it is not known whether
// the driver carried out the call.
func Unanswered(err error) bool {
	var answered *DriverError
	return err != nil && !errors.As(err, &answered) && !errors.Is(err, ErrBadAnswer)
}

// These errors mean that a call failed without an answer that holds an error. A driver's own
// error is a DriverError.
var (
	// ErrUnreachable means that no program listens at the driver's address.
	ErrUnreachable = errors.New("driver cannot be reached")
	// ErrLost means that the driver closed the connection instead of answering, for example
	// because the call made it crash. The driver may have carried out the call.
	ErrLost = errors.New("driver ended the connection without an answer")
	// ErrNotImplemented means that the driver does not have the method that was called (404).
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

// Is reports whether target is ErrNotImplemented and the driver answered 404.
func (e *DriverError) Is(target error) bool {
	return target == ErrNotImplemented && e.Status == http.StatusNotFound
}

// IsMissing reports whether a driver answered that it does not know a network, an endpoint or a
// pool. The protocol has no error codes, and each driver uses its own words. So IsMissing may be
// wrong. A caller must lose no more than one call by a wrong answer.
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
