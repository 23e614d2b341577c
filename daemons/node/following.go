// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/patchbay-net/patchbay/daemons/internal/losses"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
)

// lossSettles is how long the agent collects losses before it tells them.
const lossSettles = 500 * time.Millisecond

// following tells which kinds of objects are not followed.
type following struct {
	trouble *trouble
	reason  plan.Reason
	blind   string             // what does not see the changes then, such as "network policies"
	asks    prometheus.Counter // requests that failed
	losses  func() []losses.Loss
	also    *following // what the same kinds are for, too; or nil

	telling atomic.Bool // a goroutine of tell will report
}

// start follows kinds of objects until ctx ends. The library ends it some seconds later. pause is the time between two looks for a kind
// that the API server lacks.
func (f *following) start(ctx context.Context, self string, api *connection, pause time.Duration, list []*kindWatch) {
	for _, w := range list {
		w.self, w.api, w.pause = self, api, pause
		w.report = func(err error) {
			if err != nil {
				f.asks.Inc()
			}
			f.asked(w.copies, err)
		}
		go w.follow(ctx)
	}
}

// asked stores the result of a request for objects.
func (f *following) asked(c copies, err error) {
	if err != nil {
		err = advise(c.String(), err)
	}
	c.Report(err)
	f.tell()
	if f.also != nil {
		f.also.tell()
	}
}

// tell tells soon which kinds are not followed. It collects changes, because usually all kinds are
// lost, and come back, within a moment.
func (f *following) tell() {
	if f.telling.CompareAndSwap(false, true) {
		time.AfterFunc(lossSettles, func() {
			f.telling.Store(false)
			f.trouble.set(f.reason, lost(f.blind, f.losses()))
		})
	}
}

// lost joins losses with the same error. A kind that has not been listed is waited for, until a request
// for it fails.
func lost(blind string, list []losses.Loss) error {
	var errs []error
	for len(list) > 0 {
		first := list[0]
		names := first.Kind.String()
		rest := list[:0:0]
		for _, l := range list[1:] {
			if l.Err.Error() != first.Err.Error() {
				rest = append(rest, l)
				continue
			}
			names += ", " + l.Kind.String()
			if l.Since.Before(first.Since) {
				first.Since = l.Since
			}
		}
		if list = rest; !errors.Is(first.Err, losses.ErrUnlisted) {
			errs = append(errs, fmt.Errorf("%s do not see changes of %s since %s: %w", blind, names, first.Since.UTC().Format(time.RFC3339), first.Err))
		}
	}
	return errors.Join(errs...)
}
