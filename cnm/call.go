// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

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
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Call calls a method, such as "NetworkDriver.Join". in is the request; nil sends an empty
// body. out points to the answer; nil ignores it. The error wraps ErrUnreachable, ErrTimeout,
// ErrLost or ErrBadAnswer, or is a *DriverError. The call also ends when ctx ends.
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

// reach tries to send the request until a driver listens or the patience is over.
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

// decode reads the error, which may have one of two names, and then the answer. An empty body
// counts as an answer without values.
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

// Activate asks which interfaces the plugin implements. Managed plugins do not have this
// method, and the error is ErrNotImplemented.
func (c *Client) Activate(ctx context.Context) (*Manifest, error) {
	return query[Manifest](ctx, c, "Plugin.Activate", nil)
}

// Gone reports whether an error means that the driver did not answer. The driver may or may not
// have carried out the call.
func Gone(err error) bool {
	var answered *DriverError
	return err != nil && !errors.As(err, &answered) && !errors.Is(err, ErrBadAnswer)
}
