// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// silent is a set of plugins. The plugin "hangs" never answers.
type silent struct{ asked []string }

func (s *silent) Invoke(ctx context.Context, pluginType string, _ *spec.Call) ([]byte, error) {
	s.asked = append(s.asked, pluginType)
	if pluginType == "hangs" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, spec.Errorf(spec.CodeTryAgain, "%s is not ready", pluginType)
}

// STATUS reports a plugin that hangs, and reports the other plugins too.
func TestQuestionsHaveADeadline(t *testing.T) { synctest.Test(t, questionsHaveADeadline) }

func questionsHaveADeadline(t *testing.T) {
	plugins := &silent{}
	rt := chain.New(chain.WithPath("/nonexistent"), chain.WithInvoker(plugins), chain.WithLimits(chain.Limits{Ask: 5 * time.Millisecond}))
	list := chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"hangs"},{"type":"other"}]}`)
	err := rt.Status(t.Context(), list)
	for _, want := range []string{"plugin hangs did not answer STATUS within 5ms", "other is not ready"} {
		if err == nil || !strings.Contains(err.Error()+spec.AsError(err).Details, want) {
			t.Errorf("STATUS says %v, not %s", err, want)
		}
	}
	if got := strings.Join(plugins.asked, " "); got != "hangs other" {
		t.Errorf("asked: %s", got)
	}
	if _, err := rt.VersionInfo(t.Context(), "hangs"); err == nil || !strings.Contains(err.Error(), "plugin hangs did not answer VERSION within 5ms") {
		t.Errorf("VERSION says %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	rt = rt.With(chain.WithLimits(chain.Limits{Ask: time.Hour}))
	if err := rt.Status(ctx, list); err == nil || strings.Contains(err.Error(), "did not answer") {
		t.Errorf("at the end of the caller's context: %v", err)
	}
}

// sticky is a set of plugins. DEL and GC of the plugin "hangs" never end.
type sticky struct{ ended []string }

func (s *sticky) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	if pluginType == "hangs" && call.Verb != spec.Add {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.ended = append(s.ended, string(call.Verb)+" "+call.ContainerID+pluginType)
	return []byte(`{"cniVersion":"1.1.0"}`), nil
}

// GC reports a plugin that hangs and goes on with the others.
func TestGCHasADeadline(t *testing.T) {
	b := newBench(t)
	plugins := &sticky{}
	b.Set(chain.WithInvoker(plugins), chain.WithLimits(chain.Limits{Del: time.Millisecond}))
	list := chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"other"},{"type":"hangs"}]}`)
	b.add(list, "a", "b")
	plugins.ended = nil
	err := b.GC(t.Context(), chain.Keep{List: list}, chain.Keep{List: chaintest.List(t, `{"cniVersion":"1.1.0","name":"quick","plugins":[{"type":"last"}]}`)})
	for _, want := range []string{"DEL did not end within 1ms", "GC did not end within 20ms"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("GC says %v, not %s", err, want)
		}
	}
	if got := strings.Join(plugins.ended, ", "); got != "DEL aother, DEL bother, GC other, GC last" {
		t.Errorf("ended: %s", got)
	}
	if got := b.Cached(); got != "net-a-eth0 net-b-eth0" {
		t.Errorf("cached: %q", got)
	}
}
