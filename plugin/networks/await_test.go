// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// An ADD waits for a file that comes, for the configured time; other verbs do not wait, and no other error is waited out.
func TestAwait(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		verb   spec.Verb
		comes  time.Duration
		then   error
		cancel time.Duration
		want   error
		least  time.Duration
		most   time.Duration
	}{
		"at once":      {verb: spec.Add},
		"it comes":     {verb: spec.Add, comes: time.Second, least: time.Second, most: time.Second + pause},
		"never":        {verb: spec.Add, comes: time.Hour, want: mirror.ErrMissing, least: 4900 * time.Millisecond, most: 5 * time.Second},
		"DEL":          {verb: spec.Del, comes: time.Hour, want: mirror.ErrMissing},
		"broken":       {verb: spec.Add, then: broken, want: broken},
		"it is broken": {verb: spec.Add, comes: time.Second, then: broken, want: broken, least: time.Second, most: time.Second + pause},
		"cancelled":    {verb: spec.Add, comes: time.Hour, cancel: time.Second, want: context.DeadlineExceeded, least: time.Second, most: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(c.cancel, time.Hour))
				defer cancel()
				r := &plugin.Request{Call: &spec.Call{Verb: c.verb, Config: []byte("{}")}, Plugin: &Plugin}
				if _, err := r.Conf(); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				err := await(ctx, r, func() error {
					if time.Since(began) < c.comes {
						return mirror.ErrMissing
					}
					return c.then
				})
				if took := time.Since(began); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || took < c.least || took > c.most {
					t.Errorf("%v after %v, want %v after %v to %v", err, took, c.want, c.least, c.most)
				}
			})
		})
	}
}
