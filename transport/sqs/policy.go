package sqs

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/waybill-go/waybill"
)

// Role is who a policy is for.
type Role string

// The roles.
const (
	// RoleRelay publishes.
	RoleRelay Role = "relay"
	// RoleConsumer receives, retries and parks. Without Options.Passive it also makes queues.
	RoleConsumer Role = "consumer"
	// RoleOperator looks at parked messages, moves them back, and purges them.
	RoleOperator Role = "operator"
)

// statement is a statement of an IAM policy.
type statement struct {
	Sid      string
	Effect   string
	Action   []string
	Resource []string
}

// Policy returns the least IAM policy of a role for queues, as JSON. region is such as "eu-central-1", account has 12
// digits. The partition is "aws"; replace it where yours is another. A key of Options.KMSKey needs a policy of its own:
// kms:GenerateDataKey and kms:Decrypt to send, kms:Decrypt to receive. With Options.TopicARN a relay needs only the
// topic, and no queues.
func (o Options) Policy(role Role, region, account string, queues ...string) (string, error) {
	var p []string
	if err := o.Validate(); err != nil {
		p = append(p, err.Error())
	}
	if role != RoleRelay && role != RoleConsumer && role != RoleOperator {
		p = append(p, fmt.Sprintf("role: %q is not relay, consumer or operator", role))
	}
	if !regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-\d$`).MatchString(region) {
		p = append(p, fmt.Sprintf("region: %q is not such as eu-central-1", region))
	}
	if !regexp.MustCompile(`^\d{12}$`).MatchString(account) {
		p = append(p, fmt.Sprintf("account: %q does not have 12 digits", account))
	}
	if len(queues) == 0 && (role != RoleRelay || o.TopicARN == "") {
		p = append(p, "queues: there are none")
	}
	var own, parked []string
	for _, q := range queues {
		if problem := checkQueue(q); problem != "" {
			p = append(p, problem)
		}
		arn := "arn:aws:sqs:" + region + ":" + account + ":"
		own, parked = append(own, arn+o.QueueName(q)), append(parked, arn+o.ParkedName(q))
	}
	if err := waybill.Invalid("waybill/sqs: policy", p...); err != nil {
		return "", err
	}
	out, err := json.MarshalIndent(struct {
		Version   string
		Statement []statement
	}{"2012-10-17", o.statements(role, own, parked)}, "", "  ")
	return string(out) + "\n", err
}

func (o Options) statements(role Role, own, parked []string) []statement {
	allow := func(sid string, resources []string, actions ...string) statement {
		return statement{sid, "Allow", actions, resources}
	}
	switch role {
	case RoleRelay:
		if o.TopicARN != "" { // GetSubscriptionAttributes knows no resources
			return []statement{
				allow("Publish", []string{o.TopicARN}, "sns:ListSubscriptionsByTopic", "sns:Publish"),
				allow("Verify", []string{"*"}, "sns:GetSubscriptionAttributes"),
			}
		}
		return []statement{allow("Publish", own, "sqs:GetQueueUrl", "sqs:SendMessage")}
	case RoleConsumer:
		queue := []string{"sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:ReceiveMessage", "sqs:SendMessage"}
		park := []string{"sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"}
		if !o.Passive {
			queue, park = append([]string{"sqs:CreateQueue"}, queue...), append([]string{"sqs:CreateQueue"}, park...)
		}
		return []statement{allow("Consume", own, queue...), allow("Park", parked, park...)}
	case RoleOperator:
		return []statement{
			allow("Parked", parked, "sqs:CancelMessageMoveTask", "sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes",
				"sqs:GetQueueUrl", "sqs:ListMessageMoveTasks", "sqs:PurgeQueue", "sqs:ReceiveMessage", "sqs:StartMessageMoveTask"),
			allow("Replay", own, "sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"),
		}
	}
	return nil
}
