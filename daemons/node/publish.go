// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// publish keeps this node's public key in the annotation of its Node, until ctx ends.
func (a *Agent) publish(ctx context.Context) {
	if a.opts.Key == (mesh.Key{}) {
		return
	}
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		if !a.publishKey(ctx) {
			clock.Sleep(ctx, resident.Jitter(a.retry)) // limits the rate if another program keeps changing it
			resident.Signal(a.keyed)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.keyed:
		case <-tick.C:
		}
	}
}

// publishKey writes the annotation if it differs. done is true if there was nothing to write.
func (a *Agent) publishKey(ctx context.Context) (done bool) {
	have, known := a.mirror.published()
	if !known {
		return true // the mirror signals when it is
	}
	if have == a.opts.Key.String() {
		a.trouble.set(keyUnpublished, nil)
		a.trouble.set(keyReplaced, nil)
		return true
	}
	if have != "" {
		a.trouble.set(keyReplaced, fmt.Errorf("annotation %s of Node %s is not this node's key, because the node's disk was replaced or a user changed the annotation: the agent writes it again, "+
			"and until then other nodes do not reach this node's pods", plan.KeyAnnotation, a.opts.Node))
	}
	err := a.patchKey(ctx)
	if err != nil {
		a.metrics.apiErrors.Inc()
		err = fmt.Errorf("other nodes do not reach this node's pods, because its WireGuard key is not published: %w", keyAdvice(err))
	}
	a.trouble.set(keyUnpublished, err)
	return false // until the mirror has it
}

func keyAdvice(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the agent may not patch nodes/status: apply the chart with the transport wireguard: %w", err)
	}
	return err
}

func (a *Agent) patchKey(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	api, err := a.api.get()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{plan.KeyAnnotation: a.opts.Key.String()}}})
	if err != nil {
		return err
	}
	return api.PatchNode(ctx, a.opts.Node, patch)
}
