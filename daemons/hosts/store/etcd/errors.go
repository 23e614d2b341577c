// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// reason holds the error of a call's last attempt. The client itself reports only a timeout,
// which does not help an operator.
type reason struct {
	mu   sync.Mutex
	last error
	// staleToken is set if etcd refused an old login token. The client would send the old token
	// for ever, for example after its user was removed and added again.
	staleToken bool
}

type reasonKey struct{}

func withReason(ctx context.Context) (context.Context, *reason) {
	r := new(reason)
	return context.WithValue(ctx, reasonKey{}, r), r
}

// noteReason is a grpc.UnaryClientInterceptor that stores the error of each attempt.
func noteReason(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := next(ctx, method, req, reply, cc, opts...)
	if r, ok := ctx.Value(reasonKey{}).(*reason); ok && err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last = err
		r.staleToken = r.staleToken || strings.HasSuffix(method, "/Authenticate") && status.Code(err) == codes.Unauthenticated
	}
	return err
}

func (r *reason) tokenIsStale() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.staleToken
}

// orElse returns the text of the reason, or the text of err if there is no reason.
func (r *reason) orElse(err error) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil {
		err = r.last
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// explain adds to an error where it comes from and what to do. It does not change the errors of
// package store, because they are answers.
func (s *Engine) explain(err error, why *reason) error {
	if answered(err) {
		return err
	}
	at := strings.Join(s.opts.Endpoints, ",")
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return store.ErrSessionOver
	case errors.Is(err, rpctypes.ErrCompacted), errors.Is(err, rpctypes.ErrFutureRev):
		return store.ErrCompacted
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("etcd at %s does not answer within %v%s: %w: %s", at, s.opts.Timeout, s.whyNot(), context.DeadlineExceeded, why.orElse(err))
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("etcd at %s: %w: give the user %q a role with readwrite on the prefix %s", at, err, s.user(), s.prefix)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd at %s: %w: check user %q and its password", at, err, s.opts.User)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd at %s: %w: it requires a user and a password", at, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("etcd at %s: %w: compact it, defragment it and disarm its alarm", at, err)
	}
	return fmt.Errorf("etcd at %s: %w", at, err)
}

// answered reports whether err is an answer of etcd, and not a failure of the call.
func answered(err error) bool {
	for _, answer := range []error{nil, store.ErrNotFound, store.ErrExists, store.ErrConflict, store.ErrSessionOver, store.ErrCompacted} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// whyNot returns a likely reason why a server closed the connection without an error.
func (s *Engine) whyNot() string {
	switch {
	case s.local():
		return " (does patchbayd hosts run? look at its log)"
	case s.opts.TLS == TLS{}:
		return " (is it running, does it have a quorum, does it require TLS?)"
	case s.opts.TLS.Cert == "":
		return " (is it running, does it have a quorum, does it require a client certificate?)"
	}
	if pair, err := s.opts.TLS.load(nil); err == nil && time.Now().After(pair.Leaf.NotAfter) {
		return fmt.Sprintf(" (our certificate %s expired at %s: replace it)", s.opts.TLS.Cert, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	return " (is it running, does it have a quorum, does it trust our certificate?)"
}

// user returns the name by which etcd knows this client: the user of the login, or else the name in
// its certificate.
func (s *Engine) user() string {
	if s.opts.User == "" && s.opts.TLS.Cert != "" {
		if pair, err := s.opts.TLS.load(nil); err == nil {
			return pair.Leaf.Subject.CommonName
		}
	}
	return s.opts.User
}

// refused reports whether an error will come again with every retry.
func refused(err error) bool {
	for _, e := range []error{store.ErrCompacted, store.ErrClosed, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
