// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/patchbay-net/patchbay/daemons/node/networks"
	"github.com/patchbay-net/patchbay/internal/npwg"
)

// tell writes statuses, one request for each pod. After an error about one pod it goes on with the others; if the API server does not
// answer, it ends.
func (p *podNetworks) tell(ctx context.Context, list []networks.Status) error {
	var errs []error
	for i := range list {
		err := p.tellOne(ctx, &list[i])
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
		}
		if err != nil && !about(err) {
			break
		}
	}
	return errors.Join(errs...)
}

// about reports whether an error is an answer about the object of a request, and not about the server.
func about(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests && code != http.StatusUnauthorized
}

// tellOne writes the status of a pod. A pod that is gone needs none. If the API server refuses the status itself, as one that is too
// large, tellOne notes that, and does not repeat it.
func (p *podNetworks) tellOne(ctx context.Context, s *networks.Status) error {
	err := p.patch(ctx, s)
	var refused error
	switch {
	case err == nil:
		p.status.written("written")
	case apierrors.IsNotFound(err):
		p.status.written("gone")
	case apierrors.IsInvalid(err), apierrors.IsRequestEntityTooLargeError(err):
		p.status.written("refused")
		refused = fmt.Errorf("annotation %s: the API server refuses it: %w", npwg.StatusKey, err)
	default:
		p.status.written("failed")
		return fmt.Errorf("write annotation %s of pod %s/%s: %w", npwg.StatusKey, s.Pod.Namespace, s.Pod.Name, statusAdvice(err))
	}
	p.sent.Note(*s, refused, time.Now())
	return nil
}

func statusAdvice(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the agent may not patch pods/status: apply the chart with networks: true: %w", err)
	}
	return err
}

// patch writes the annotation. The UID is a condition: the API server refuses it as not valid if a pod of the same name has taken the
// pod's place.
func (p *podNetworks) patch(ctx context.Context, s *networks.Status) error {
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	api, err := p.api.get()
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.Pod.UID, "annotations": map[string]string{npwg.StatusKey: s.Text},
	}})
	if err != nil {
		return err
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/status", url.PathEscape(s.Pod.Namespace), url.PathEscape(s.Pod.Name))
	_, err = api.Request(ctx, http.MethodPatch, path, string(types.MergePatchType), body)
	return err
}
