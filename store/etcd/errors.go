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

	"github.com/patchbay-net/patchbay/store"
)

// reason is what an attempt of a call failed with: the client only says that its
// time is over, which is no help to anybody.
type reason struct {
	mu   sync.Mutex
	last error
	// spoilt is a login that was refused for the login before: the client logs in with
	// that for ever, as after its user was removed and added again.
	spoilt bool
}

type reasonKey struct{}

func withReason(ctx context.Context) (context.Context, *reason) {
	r := new(reason)
	return context.WithValue(ctx, reasonKey{}, r), r
}

// noteReason is a grpc.UnaryClientInterceptor.
func noteReason(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := next(ctx, method, req, reply, cc, opts...)
	if r, ok := ctx.Value(reasonKey{}).(*reason); ok && err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last = err
		r.spoilt = r.spoilt || strings.HasSuffix(method, "/Authenticate") && status.Code(err) == codes.Unauthenticated
	}
	return err
}

func (r *reason) isSpoilt() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spoilt
}

// orElse is the reason, or what there is else.
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

// explain says where an error comes from, and what to do about it. Those of package
// store are answers, not trouble.
func (s *Store) explain(err error, why *reason) error {
	if answered(err) {
		return err
	}
	at := strings.Join(s.opts.Endpoints, ",")
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return store.ErrLeaseOver
	case errors.Is(err, rpctypes.ErrCompacted), errors.Is(err, rpctypes.ErrFutureRev):
		return store.ErrCompacted
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return fmt.Errorf("etcd at %s does not answer within %v%s: %w: %s", at, s.opts.Timeout, s.whyNot(), context.DeadlineExceeded, why.orElse(err))
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("etcd at %s: %w: give the user %q a role with readwrite on the prefix %s", at, err, s.user(), s.prefix)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd at %s: %w: check user %q and its password", at, err, s.opts.User)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd at %s: %w: it wants a user and a password", at, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("etcd at %s: %w: compact it, defragment it and disarm its alarm", at, err)
	}
	return fmt.Errorf("etcd at %s: %w", at, err)
}

// answered says whether a call was answered: no trouble.
func answered(err error) bool {
	for _, answer := range []error{nil, store.ErrNotFound, store.ErrExists, store.ErrConflict, store.ErrLeaseOver, store.ErrCompacted} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// whyNot says what a server does not: it closes a connection without a word.
func (s *Store) whyNot() string {
	switch {
	case s.opts.TLS == TLS{}:
		return " (is it running, has it a quorum, does it want TLS?)"
	case s.opts.TLS.Cert == "":
		return " (is it running, has it a quorum, does it want a certificate of ours?)"
	}
	if pair, err := s.opts.TLS.load(nil); err == nil && time.Now().After(pair.Leaf.NotAfter) {
		return fmt.Sprintf(" (our certificate %s ran out at %s: replace it)", s.opts.TLS.Cert, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	return " (is it running, has it a quorum, does it trust our certificate?)"
}

// user is whom etcd takes us for: without a login the name in our certificate.
func (s *Store) user() string {
	if s.opts.User == "" && s.opts.TLS.Cert != "" {
		if pair, err := s.opts.TLS.load(nil); err == nil {
			return pair.Leaf.Subject.CommonName
		}
	}
	return s.opts.User
}

// refused is an error that time does not heal.
func refused(err error) bool {
	for _, e := range []error{store.ErrCompacted, store.ErrClosed, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
