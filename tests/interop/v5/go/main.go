// RocketMQ's Go client of the gRPC protocol: takes commands from standard input and prints events,
// a JSON object a line; see programs.py. It does TLS or not as a whole process: environment
// rocketmq.client.enableSsl.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

type command struct {
	Do           string            `json:"do"`
	Seq          int               `json:"seq"`
	ID           string            `json:"id"`
	Endpoint     string            `json:"endpoint"`
	Key          string            `json:"key"`
	Secret       string            `json:"secret"`
	Topic        string            `json:"topic"`
	Group        string            `json:"group"`
	Tag          string            `json:"tag"`
	SQL          string            `json:"sql"`
	Check        string            `json:"check"`
	Fail         int               `json:"fail"`
	SlowMs       int64             `json:"slow_ms"`
	AwaitMs      int64             `json:"await_ms"`
	Body         string            `json:"body"`
	MessageGroup string            `json:"message_group"`
	DelayMs      int64             `json:"delay_ms"`
	Properties   map[string]string `json:"properties"`
	Transaction  string            `json:"transaction"`
	Count        int32             `json:"count"`
	InvisibleMs  int64             `json:"invisible_ms"`
	Number       int               `json:"number"`
}

type fields map[string]any

type stopper interface{ GracefulStop() error }

var (
	mutex    sync.Mutex
	clients  = map[string]stopper{}
	messages = []*rmq.MessageView{}
)

func printLine(event fields) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func text(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func shown(view *rmq.MessageView) fields {
	mutex.Lock()
	messages = append(messages, view)
	number := len(messages) - 1
	mutex.Unlock()
	properties := view.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	event := fields{
		"number":        number,
		"topic":         view.GetTopic(),
		"body":          string(view.GetBody()),
		"tag":           text(view.GetTag()),
		"keys":          append([]string{}, view.GetKeys()...),
		"properties":    properties,
		"message_id":    view.GetMessageId(),
		"message_group": text(view.GetMessageGroup()),
		"attempt":       view.GetDeliveryAttempt(),
		"now_ms":        time.Now().UnixMilli(),
	}
	if born := view.GetBornTimestamp(); born != nil {
		event["born_ms"] = born.UnixMilli()
	}
	return event
}

func named(event, id string, view *rmq.MessageView) fields {
	found := shown(view)
	found["event"], found["id"] = event, id
	return found
}

func (c *command) config() *rmq.Config {
	return &rmq.Config{
		Endpoint:      c.Endpoint,
		ConsumerGroup: c.Group,
		Credentials:   &credentials.SessionCredentials{AccessKey: c.Key, AccessSecret: c.Secret},
	}
}

func (c *command) subscription() map[string]*rmq.FilterExpression {
	if c.SQL != "" {
		return map[string]*rmq.FilterExpression{
			c.Topic: rmq.NewFilterExpressionWithType(c.SQL, rmq.SQL92),
		}
	}
	return map[string]*rmq.FilterExpression{c.Topic: rmq.NewFilterExpression(c.Tag)}
}

func (c *command) producer() (stopper, error) {
	options := []rmq.ProducerOption{rmq.WithTopics(c.Topic)}
	if c.Check != "" {
		answer := map[string]rmq.TransactionResolution{
			"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN,
		}[c.Check]
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(view *rmq.MessageView) rmq.TransactionResolution {
				printLine(named("check", c.ID, view))
				return answer
			},
		}))
	}
	made, err := rmq.NewProducer(c.config(), options...)
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

func (c *command) push() (stopper, error) {
	seen := map[string]int{}
	made, err := rmq.NewPushConsumer(c.config(),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(c.subscription()),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
				printLine(named("message", c.ID, view))
				time.Sleep(time.Duration(c.SlowMs) * time.Millisecond)
				printLine(fields{"event": "finished", "id": c.ID})
				mutex.Lock()
				seen[view.GetMessageId()]++
				fails := seen[view.GetMessageId()] <= c.Fail
				mutex.Unlock()
				if fails {
					return rmq.FAILURE
				}
				return rmq.SUCCESS
			},
		}))
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

func (c *command) simple() (stopper, error) {
	made, err := rmq.NewSimpleConsumer(c.config(),
		rmq.WithSimpleAwaitDuration(time.Duration(c.AwaitMs)*time.Millisecond),
		rmq.WithSimpleSubscriptionExpressions(c.subscription()))
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

func (c *command) send(producer rmq.Producer) (fields, error) {
	message := &rmq.Message{Topic: c.Topic, Body: []byte(c.Body)}
	if c.Tag != "" {
		message.SetTag(c.Tag)
	}
	if c.Key != "" {
		message.SetKeys(c.Key)
	}
	if c.MessageGroup != "" {
		message.SetMessageGroup(c.MessageGroup)
	}
	if c.DelayMs > 0 {
		message.SetDelayTimestamp(time.Now().Add(time.Duration(c.DelayMs) * time.Millisecond))
	}
	for name, value := range c.Properties {
		message.AddProperty(name, value)
	}
	var receipts []*rmq.SendReceipt
	var err error
	if c.Transaction == "" {
		receipts, err = producer.Send(context.Background(), message)
	} else {
		local := producer.BeginTransaction()
		receipts, err = producer.SendWithTransaction(context.Background(), message, local)
		if err == nil && c.Transaction == "commit" {
			err = local.Commit()
		} else if err == nil && c.Transaction == "rollback" {
			err = local.RollBack()
		}
	}
	if err != nil {
		return nil, err
	}
	return fields{"message_id": receipts[0].MessageID, "recall_handle": ""}, nil
}

func (c *command) receive(consumer rmq.SimpleConsumer) (fields, error) {
	found, err := consumer.Receive(
		context.Background(), c.Count, time.Duration(c.InvisibleMs)*time.Millisecond)
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) && status.Code == 40401 {
		err = nil // it is how this client says that there are none
	}
	if err != nil {
		return nil, err
	}
	events := []fields{}
	for _, view := range found {
		events = append(events, shown(view))
	}
	return fields{"messages": events}, nil
}

func (c *command) perform() (fields, error) {
	mutex.Lock()
	client := clients[c.ID]
	var view *rmq.MessageView
	if c.Number < len(messages) {
		view = messages[c.Number]
	}
	mutex.Unlock()
	switch c.Do {
	case "producer", "push", "simple":
		make := map[string]func() (stopper, error){
			"producer": c.producer, "push": c.push, "simple": c.simple,
		}[c.Do]
		made, err := make()
		if err == nil {
			mutex.Lock()
			clients[c.ID] = made
			mutex.Unlock()
		}
		return fields{}, err
	case "send":
		return c.send(client.(rmq.Producer))
	case "receive":
		return c.receive(client.(rmq.SimpleConsumer))
	case "ack":
		return fields{}, client.(rmq.SimpleConsumer).Ack(context.Background(), view)
	case "change":
		return fields{}, client.(rmq.SimpleConsumer).ChangeInvisibleDuration(
			view, time.Duration(c.InvisibleMs)*time.Millisecond)
	case "close":
		mutex.Lock()
		delete(clients, c.ID)
		mutex.Unlock()
		return fields{}, client.GracefulStop()
	}
	return nil, fmt.Errorf("not known: %s", c.Do)
}

func (c *command) answer() {
	event, err := c.perform()
	if err != nil {
		event = fields{"event": "failed", "error": err.Error()}
		var status *rmq.ErrRpcStatus
		if errors.As(err, &status) {
			event["code"] = status.Code
		}
	} else {
		event["event"] = "done"
	}
	event["seq"] = c.Seq
	printLine(event)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		go c.answer()
	}
}
